"""fakeredis's TCP server as a process: it binds a port that the kernel chooses and prints it."""

from __future__ import annotations


def main() -> None:
    """Serve on a free loopback port until killed."""
    from fakeredis import TcpFakeServer

    with TcpFakeServer(("127.0.0.1", 0), server_type="valkey") as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
