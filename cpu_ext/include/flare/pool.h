// Persistent threads, the barrier between phases, and the float mode of a replay.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace flare {

// Spins on one counter, then yields. Never parks: a replay is short, and a core that is free
// passes in well under a microsecond. When the machine is busy (waits end in a yield) the spin
// budget shrinks, so a waiting thread soon gives its core to the one that it waits for.
class Barrier {
 public:
  explicit Barrier(int threads) noexcept : threads_(static_cast<uint64_t>(threads)) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  // Returns when all threads have called it as often as this one; orders memory between them.
  void wait() noexcept;
  void wait(int /*tid*/) noexcept { wait(); }
  int threads() const noexcept { return static_cast<int>(threads_); }

 private:
  void wait_slow(uint64_t target) noexcept;

  const uint64_t threads_;
  alignas(64) std::atomic<uint64_t> arrivals_{0};  // never reset: a round is threads_ arrivals
  alignas(64) std::atomic<int> spins_{2000};       // a hint only
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
  // The barrier of the body that runs now.
  Barrier& barrier() noexcept { return barrier_; }
  // Runs body(argument, tid) on every thread under FloatMode and returns when all are done. The
  // body must not throw. Callers on several threads take turns.
  void run(Body body, void* argument);

 private:
  void work(int tid);
  bool await(uint64_t seen) noexcept;
  void stop() noexcept;

  const int threads_;
  Barrier barrier_;
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
