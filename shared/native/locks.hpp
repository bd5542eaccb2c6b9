// Fair locks, acquired in the order of requests, and statistics of their hold times.
//
// A waiting thread gets a lock before a thread that releases it and requests it again. So long work that releases its
// locks between short units delays others by one unit only.
//
// Lock order. A thread that holds a lock takes only locks further down this list:
//   1. learning (Drafter::learning_, a std::mutex): deferred learning from a sequence
//   2. sequence (Sequence::lock): one sequence, and its session's record of drafts
//   3. graph (Calibration::lock): the calibration that all generations of a graph share
//   4. tenant (LearnedMemory::lock): one tenant's memory
//   5. table (SessionTable::lock_): the open sessions of a server
//   6. small ones (each `mutex_`): caches, free lists and queues inside one object, held for a few instructions. No
//      other lock is taken under one of them, nor under the table's.
// A thread holds at most one sequence lock, one graph lock and one tenant lock. A draft holds all three, and shares the
// graph's and the tenant's with other drafts. A large tree releases all three every few nodes.
//
// The worker threads of parallel_for serve one caller at a time. Other callers try that lock, and work alone instead of
// waiting.
//
// No thread waits for a lock while it holds the GIL. No thread calls Python while it holds a lock, because the thread
// with the GIL may wait for that lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

namespace speculant {

enum class LockKind : std::uint8_t { kSequence, kGraph, kTenant, kTable };
inline constexpr std::array kLockNames = {"sequence", "graph", "tenant", "table"};

/// Number of holds of one kind of lock, and the longest hold. Recorded only while `is_recorded` is set.
struct LockHolds {
  static inline std::atomic<bool> is_recorded = false;

  std::atomic<std::uint64_t> count = 0;
  std::atomic<std::int64_t> longest_ns = 0;

  void note(std::int64_t ns) {
    count.fetch_add(1, std::memory_order_relaxed);
    std::int64_t longest = longest_ns.load(std::memory_order_relaxed);
    while (ns > longest && !longest_ns.compare_exchange_weak(longest, ns, std::memory_order_relaxed)) {
    }
  }
};
inline std::array<LockHolds, kLockNames.size()> lock_holds;

/// A lock for one writer or several readers, first come, first served.
class FairLock {
 public:
  explicit FairLock(LockKind kind) : kind(kind) {}
  FairLock(const FairLock&) = delete;

  void lock() {
    std::unique_lock guard(mutex_);
    const std::uint64_t ticket = next_++;
    turns_.wait(guard, [&] { return serving_ == ticket && num_readers_ == 0; });
  }
  void unlock() {
    std::lock_guard guard(mutex_);
    pass_on();
  }
  void lock_shared() {
    std::unique_lock guard(mutex_);
    const std::uint64_t ticket = next_++;
    turns_.wait(guard, [&] { return serving_ == ticket; });
    ++num_readers_;
    pass_on();
  }
  void unlock_shared() {
    std::lock_guard guard(mutex_);
    if (--num_readers_ == 0 && serving_ != next_) turns_.notify_all();
  }

  const LockKind kind;

 private:
  void pass_on() {
    if (++serving_ != next_) turns_.notify_all();
  }

  std::mutex mutex_;  // held for a few instructions
  std::condition_variable turns_;
  std::uint64_t next_ = 0, serving_ = 0;
  int num_readers_ = 0;
};

/// Holds a lock during its lifetime, except for pauses.
template <bool is_shared>
class Hold {
 public:
  explicit Hold(FairLock& lock) : lock_(lock) { take(); }
  Hold(const Hold&) = delete;
  ~Hold() { give(); }

  void take() {
    if constexpr (is_shared) {
      lock_.lock_shared();
    } else {
      lock_.lock();
    }
    if (LockHolds::is_recorded.load(std::memory_order_relaxed)) started_ns_ = now_ns();
  }
  void give() {
    const std::int64_t held_ns = started_ns_ == 0 ? -1 : now_ns() - std::exchange(started_ns_, 0);
    if constexpr (is_shared) {
      lock_.unlock_shared();
    } else {
      lock_.unlock();
    }
    if (held_ns >= 0) lock_holds[static_cast<std::size_t>(lock_.kind)].note(held_ns);
  }

 private:
  static std::int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  FairLock& lock_;
  std::int64_t started_ns_ = 0;  // 0: not recorded
};
using Exclusive = Hold<false>;
using Shared = Hold<true>;

}  // namespace speculant
