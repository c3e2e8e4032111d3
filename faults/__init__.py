"""What goes wrong: the RESP fault proxy, servers started and disturbed, gates that force a schedule."""
