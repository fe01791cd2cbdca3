// Persistent threads, the barrier between phases, and the float mode of a replay.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace flare {

// Waits on a counter that only grows: spins, then yields. Never parks: a replay is short, and a
// core that is free passes in well under a microsecond. When the machine is busy (waits end in a yield)
// the spin budget shrinks, so a waiting thread soon gives its core to the one that it waits for.
class SpinWait {
 public:
  void until(const std::atomic<uint64_t>& counter, uint64_t target) noexcept {
    if (counter.load(std::memory_order_acquire) < target) slow(counter, target);
  }

 private:
  void slow(const std::atomic<uint64_t>& counter, uint64_t target) noexcept;
  alignas(64) std::atomic<int> spins_{2000};  // a hint only
};

// Returns from wait() when all threads have called it as often as this one; orders memory between
// them. A thread that the machine holds up holds up all: within a replay, Crew is better.
class Barrier {
 public:
  explicit Barrier(int threads) noexcept : threads_(static_cast<uint64_t>(threads)) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait() noexcept;
  void wait(int /*tid*/) noexcept { wait(); }
  int threads() const noexcept { return static_cast<int>(threads_); }

 private:
  const uint64_t threads_;
  alignas(64) std::atomic<uint64_t> arrivals_{0};  // never reset: a round is threads_ arrivals
  SpinWait spin_;
};

// Shares out one phase of work after another. A phase is over when its units are done, whoever did
// them: a thread that is held up between two pieces delays nobody, as the others take its share.
// All threads go through the same phases:
//   crew.begin(tid, total, grain);
//   for (int64_t first, last; crew.next(tid, &first, &last);) work on units [first, last);
// After the loop every unit of the phase is done and visible.
class Crew {
 public:
  explicit Crew(int threads) : threads_(threads), members_(static_cast<size_t>(threads)) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int threads() const noexcept { return threads_; }
  // Starts the thread's next phase: units [0, total), handed out in pieces of `grain`.
  void begin(int tid, int64_t total, int64_t grain) noexcept;
  // The next piece for the thread: of its own share, then of the others'. False when the phase is
  // over.
  bool next(int tid, int64_t* first, int64_t* last) noexcept;

 private:
  struct alignas(64) Member {
    // Phase << 16 | pieces of this member's share that were taken. Taken by anybody; a value of an
    // earlier phase means none.
    std::atomic<uint64_t> cursor{0};
    // The rest is the member's own.
    alignas(64) uint64_t phase = 0;
    uint64_t target = 0;  // pieces of all phases up to this one
    int64_t total = 0, grain = 1, pieces = 0;
    uint64_t finished = 0;  // pieces not yet told
    int visited = 0;        // shares that are exhausted, from its own on
  };
  static bool take(std::atomic<uint64_t>& cursor, uint64_t phase, uint64_t count,
                   uint64_t* index) noexcept;

  const int threads_;
  std::vector<Member> members_;
  alignas(64) std::atomic<uint64_t> done_{0};  // pieces, over all phases
  SpinWait spin_;
};

// Flush-to-zero and denormals-are-zero while it lives (MXCSR on x86, FPCR on ARM): every kernel
// counts on it, because the AMX bf16 instructions always flush. Restores the caller's mode.
class FloatMode {
 public:
  FloatMode() noexcept;
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint64_t saved_;
};

// `threads` workers of which the caller of run() is number 0. Unpinned. Between runs a worker
// spins a short while, then parks on a condition variable and costs nothing.
class ThreadPool {
 public:
  using Body = void (*)(void* argument, int tid);

  // Throws std::invalid_argument unless 1 <= threads <= 1024; std::system_error when a thread
  // cannot start (those that did are joined).
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return threads_; }
  // For the body that runs now.
  Barrier& barrier() noexcept { return barrier_; }
  Crew& crew() noexcept { return crew_; }
  // Runs body(argument, tid) on every thread under FloatMode and returns when all are done. The
  // body must not throw. Callers on several threads take turns.
  void run(Body body, void* argument);

 private:
  void work(int tid);
  bool await(uint64_t seen) noexcept;
  void stop() noexcept;

  const int threads_;
  Barrier barrier_;
  Crew crew_;
  Barrier done_;
  std::mutex turn_;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  alignas(64) std::atomic<uint64_t> epoch_{0};
  std::atomic<int> parked_{0};
  std::atomic<bool> stopping_{false};
  std::mutex park_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace flare
