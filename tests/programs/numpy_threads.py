"""Threads that compute with numpy; the result does not depend on how they interleave."""
import hashlib
import sys
import threading

import numpy as np

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
SIZE = 300
done = [0] * 4
results = [None] * 4
report = threading.Condition()


def work(number):
    generator = np.random.default_rng(number)
    state = generator.standard_normal((SIZE, SIZE))
    step = generator.standard_normal((SIZE, SIZE)) / SIZE
    for _ in range(ROUNDS):
        for _ in range(8):
            state = np.tanh(np.einsum("ij,jk->ik", state, step) + 0.1)
        with report:
            done[number] += 1
            report.notify()
    results[number] = hashlib.sha256(state.tobytes()).hexdigest()


threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
shown = 0
while shown < ROUNDS:
    with report:
        report.wait_for(lambda: min(done) > shown)
        shown = min(done)
    print("round", shown, flush=True)
for thread in threads:
    thread.join()
print("digest", hashlib.sha256("".join(results).encode()).hexdigest()[:16], flush=True)
