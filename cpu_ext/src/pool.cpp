// Thread pool, barrier and float mode. See pool.h.
#include "flare/pool.h"

#include <sched.h>

#include <chrono>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flare {
namespace {

constexpr int kMaxSpins = 2000;
constexpr int kMinSpins = 16;
constexpr auto kIdleSpin = std::chrono::microseconds(100);
constexpr auto kIdleYield = std::chrono::microseconds(1000);

inline void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

void Barrier::wait() noexcept {
  const uint64_t ticket = arrivals_.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t target = (ticket / threads_ + 1) * threads_;
  if (ticket + 1 != target) wait_slow(target);
}

void Barrier::wait_slow(uint64_t target) noexcept {
  const int budget = spins_.load(std::memory_order_relaxed);
  for (int i = 0; i < budget; ++i) {
    if (arrivals_.load(std::memory_order_acquire) >= target) {
      if (budget < kMaxSpins) spins_.store(budget + 1 + budget / 8, std::memory_order_relaxed);
      return;
    }
    pause();
  }
  spins_.store(budget / 2 > kMinSpins ? budget / 2 : kMinSpins, std::memory_order_relaxed);
  while (arrivals_.load(std::memory_order_acquire) < target) sched_yield();
}

#if defined(__x86_64__)
FloatMode::FloatMode() noexcept : saved_(_mm_getcsr()) {
  _mm_setcsr(0x9fc0u);  // round to nearest even, exceptions masked, FTZ and DAZ
}
FloatMode::~FloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FloatMode::FloatMode() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(1ull << 24));  // round to nearest even, FZ
}
FloatMode::~FloatMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
FloatMode::FloatMode() noexcept : saved_(0) {}
FloatMode::~FloatMode() = default;
#endif

ThreadPool::ThreadPool(int threads) : threads_(threads), barrier_(threads), done_(threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be 1 to 1024");
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int tid = 1; tid < threads; ++tid) workers_.emplace_back(&ThreadPool::work, this, tid);
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() noexcept {
  {
    const std::lock_guard<std::mutex> lock(park_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::run(Body body, void* argument) {
  const std::lock_guard<std::mutex> turn(turn_);
  const FloatMode mode;
  body_ = body;
  argument_ = argument;
  epoch_.fetch_add(1);  // sequentially consistent: pairs with parked_ in await()
  if (parked_.load() > 0) {
    const std::lock_guard<std::mutex> lock(park_);
    wake_.notify_all();
  }
  body(argument, 0);
  done_.wait();
}

// Waits for an epoch after `seen`; false when the pool stops.
bool ThreadPool::await(uint64_t seen) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (uint32_t i = 0;; ++i) {
    if (epoch_.load(std::memory_order_acquire) != seen) return true;
    if (stopping_.load(std::memory_order_relaxed)) return false;
    if (i % 64 != 63) {
      pause();
      continue;
    }
    const auto idle = Clock::now() - start;
    if (idle > kIdleYield) break;
    if (idle > kIdleSpin) sched_yield();
  }
  std::unique_lock<std::mutex> lock(park_);
  parked_.fetch_add(1);
  wake_.wait(lock, [&] { return epoch_.load() != seen || stopping_.load(); });
  parked_.fetch_sub(1);
  return epoch_.load() != seen;
}

void ThreadPool::work(int tid) {
  const FloatMode mode;
  for (uint64_t seen = 0; await(seen); ++seen) {
    body_(argument_, tid);
    done_.wait();
  }
}

}  // namespace flare
