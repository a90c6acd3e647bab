"""What the machine and the interpreter allow: a restart of ranks that have no wrapper, as a script of each rank.

`idle`: rank 1 tells a process in between with one byte, that process each rank with one byte, by which the kernel
signals its main thread; the handler raises, the rank answers with one byte, and goes on when all have. Nothing is
said but that it happened: no rank is counted, no hook called, nobody may be lost. `all_reduce`: rank 1 destroys its
process group, the others destroy theirs when the collective fails. Nobody waits for anybody.
"""

from __future__ import annotations

SCRIPT = """
import os, time

ME, SIZE, PORT = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
payload, last = os.environ["PAYLOAD"], int(os.environ["RESTARTS"])
events = open(os.environ["EVENTS"] + os.environ["RANK"], "w", buffering=1)

def note(what, iteration):
    events.write(f"{what} {iteration} {time.monotonic():.7f}\\n")

def go_first():
    if os.environ["FIRST"]:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))

def serve():
    go_first()
    import select, socket
    with socket.create_server(("127.0.0.1", PORT)) as listening:
        ranks = {each.fileno(): each for each in (listening.accept()[0] for _ in range(SIZE))}
    poll, entered = select.epoll(), 0
    for descriptor, rank in ranks.items():
        rank.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(descriptor, select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            said = ranks[descriptor].recv(1)
            if not said:
                os._exit(0)
            entered += said == b"e"
            if said == b"f" or entered == SIZE:
                entered = 0
                for rank in ranks.values():
                    rank.send(b"!")

if payload == "idle" and ME == 0 and not os.fork():
    serve()

import torch
torch.set_num_threads(1)
go_first()

def fails_at():
    return time.monotonic() + 0.3 if ME == 1 else float("inf")

def idle():
    import fcntl, signal, socket, struct
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    class Told(BaseException):
        pass

    is_in = False

    def handle(number, frame):
        if is_in:
            raise Told

    peer.send(b"e")
    peer.recv(1)
    signal.signal(signal.SIGURG, handle)
    fcntl.fcntl(peer, 15, struct.pack("ii", 0, os.getpid()))
    fcntl.fcntl(peer, 10, signal.SIGURG)
    fcntl.fcntl(peer, fcntl.F_SETFL, fcntl.fcntl(peer, fcntl.F_GETFL) | os.O_ASYNC)
    for iteration in range(last):
        note("enter", iteration)
        try:
            try:
                is_in, end = True, fails_at()
                while time.monotonic() < end:
                    time.sleep(0.005)
                is_in = False
                note("fail", iteration)
                raise RuntimeError("boom")
            finally:
                is_in = False
        except RuntimeError:
            peer.send(b"f")
        except Told:
            pass
        peer.recv(1)
        peer.send(b"e")
        peer.recv(1)
    note("enter", last)

def all_reduce():
    import datetime
    import torch.distributed as dist
    limit = datetime.timedelta(seconds=50)
    store = dist.TCPStore("127.0.0.1", PORT, SIZE, ME == 0, timeout=limit)
    for iteration in range(last):
        note("enter", iteration)
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(str(iteration), store), rank=ME, world_size=SIZE, timeout=limit)
        total = torch.ones(1)
        dist.all_reduce(total)
        end = fails_at()
        try:
            while time.monotonic() < end:
                if ME != 1:
                    dist.all_reduce(total)
            note("fail", iteration)
        except RuntimeError:
            pass
        dist.destroy_process_group()
    note("enter", last)
    time.sleep(1)  # the store is rank 0's

{"idle": idle, "all_reduce": all_reduce}[payload]()
os._exit(0)
"""
