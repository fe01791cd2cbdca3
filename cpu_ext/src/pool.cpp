// Thread pool, barrier and float mode. See pool.h.
#include "flare/pool.h"

#include <sched.h>

#include <algorithm>
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

int checked(int threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be 1 to 1024");
  return threads;
}

}  // namespace

void SpinWait::slow(const std::atomic<uint64_t>& counter, uint64_t target) noexcept {
  const int budget = spins_.load(std::memory_order_relaxed);
  for (int i = 0; i < budget; ++i) {
    if (counter.load(std::memory_order_acquire) >= target) {
      if (budget < kMaxSpins) spins_.store(budget + 1 + budget / 8, std::memory_order_relaxed);
      return;
    }
    pause();
  }
  spins_.store(budget / 2 > kMinSpins ? budget / 2 : kMinSpins, std::memory_order_relaxed);
  while (counter.load(std::memory_order_acquire) < target) sched_yield();
}

void Barrier::wait() noexcept {
  const uint64_t ticket = arrivals_.fetch_add(1, std::memory_order_acq_rel);
  spin_.until(arrivals_, (ticket / threads_ + 1) * threads_);
}

void Crew::begin(int tid, int64_t total, int64_t grain) noexcept {
  Member& m = members_[static_cast<size_t>(tid)];
  constexpr int64_t kMostPieces = 0xffff;  // per share, so that a cursor holds them
  m.total = total > 0 ? total : 0;
  m.grain = std::max({grain, int64_t{1}, (m.total + kMostPieces - 1) / kMostPieces});
  m.pieces = (m.total + m.grain - 1) / m.grain;
  m.target += static_cast<uint64_t>(m.pieces);
  m.visited = 0;
  ++m.phase;
}

// Takes the next of `count` pieces in the phase; false when all are taken, or the phase is over.
bool Crew::take(std::atomic<uint64_t>& cursor, uint64_t phase, uint64_t count,
                uint64_t* index) noexcept {
  uint64_t seen = cursor.load(std::memory_order_relaxed);
  for (;;) {
    if (seen >> 16 > phase) return false;
    const uint64_t taken = seen >> 16 == phase ? seen & 0xffff : 0;
    if (taken >= count) return false;
    if (cursor.compare_exchange_weak(seen, phase << 16 | (taken + 1), std::memory_order_relaxed)) {
      *index = taken;
      return true;
    }
  }
}

bool Crew::next(int tid, int64_t* first, int64_t* last) noexcept {
  Member& m = members_[static_cast<size_t>(tid)];
  for (; m.visited < threads_; ++m.visited) {
    const int share = (tid + m.visited) % threads_;
    const int64_t begin = m.pieces * share / threads_;
    const int64_t count = m.pieces * (share + 1) / threads_ - begin;
    uint64_t index = 0;
    if (count == 0 || !take(members_[static_cast<size_t>(share)].cursor, m.phase,
                            static_cast<uint64_t>(count), &index)) {
      continue;
    }
    *first = (begin + static_cast<int64_t>(index)) * m.grain;
    *last = std::min(*first + m.grain, m.total);
    ++m.finished;
    return true;
  }
  if (m.finished > 0) done_.fetch_add(m.finished, std::memory_order_acq_rel);
  m.finished = 0;
  spin_.until(done_, m.target);
  return false;
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

ThreadPool::ThreadPool(int threads)
    : threads_(checked(threads)), barrier_(threads), crew_(threads), done_(threads) {
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
