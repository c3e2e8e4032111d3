"""What must hold: obligations and transition systems, symbolic."""
