# Work spread over a pool of processes.
import multiprocessing


def work(n):
    s = 0
    for i in range(60000):
        s = (s * 31 + i * n) % 1000003
    return s


if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool:
        print(sum(pool.imap_unordered(work, range(200))))
