"""Stands in for the text stack: its import says at what priority it runs."""

import os
import sys
import threading

_own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) - os.getpriority(os.PRIO_PROCESS, os.getppid())
_main = os.getpriority(os.PRIO_PROCESS, os.getpid()) - os.getpriority(os.PRIO_PROCESS, os.getppid())
sys.stderr.write(f"niceness of the importing thread {_own}, of the main thread {_main}\n")
