"""Ask the warm process to run a program, and end as it ends: `client.py ADDRESS ARGUMENTS-OF-PYTHON …`

It imports little, and nothing of ours: see `tests/launcher`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SIZE_BYTES = 8  # of the number that says how long the request is
PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    _, address, *arguments = sys.argv
    request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX) as warm:
        warm.connect(address)
        socket.send_fds(warm, [len(request).to_bytes(SIZE_BYTES, "big")], [0, 1, 2])
        warm.sendall(request)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: warm.send(bytes([number])))
        code = int(warm.recv(16))
    if code < 0:
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
