"""A fork at the worst moment: while another thread makes the first enqueue."""

from __future__ import annotations

import subprocess
import sys

from taskharbor import Harbor

PROGRAM = """
import os, signal, sys, threading

from taskharbor import Harbor

harbor = Harbor(sys.argv[1])
enqueueing, go_on, parent = threading.Event(), threading.Event(), os.getpid()


class Held:
    '''What another thread begins to import, it is still importing while this process forks.'''

    def find_spec(self, name, path=None, target=None):
        if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
            enqueueing.set()
            go_on.wait()


def enqueue():
    harbor.enqueue("task")
    enqueueing.set()


sys.meta_path.insert(0, Held())
thread = threading.Thread(target=enqueue)
thread.start()
enqueueing.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)  # rather than wait without end
    harbor.enqueue("task")
    os._exit(0)
_, status = os.waitpid(child, 0)
go_on.set()
thread.join()
print(os.waitstatus_to_exitcode(status), harbor.jobs.counts()["ready"])
harbor.close()
"""


def test_a_fork_while_another_thread_makes_the_first_enqueue_hangs_on_no_import(dsn: str) -> None:
    url = dsn.replace("127.0.0.1", "localhost")  # a name, which has to be looked up
    with Harbor(url) as harbor:
        harbor.migrate()
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=150, check=False
    )
    assert ran.stdout.split() == ["0", "2"], ran.stderr
