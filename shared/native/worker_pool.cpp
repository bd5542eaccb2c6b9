#include "worker_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace speculant {
namespace {

using Work = std::function<void(std::size_t, std::size_t)>;

/// The cores that this thread may run on, if the system reports them.
class Cores {
 public:
#ifdef __linux__
  Cores() { is_known_ = sched_getaffinity(0, sizeof allowed_, &allowed_) == 0; }
  std::size_t size() const { return is_known_ ? static_cast<std::size_t>(CPU_COUNT(&allowed_)) : kMaxThreads; }
  static int current() { return sched_getcpu(); }
  /// Pin a thread to these cores, except one.
  void keep(pthread_t thread, int without) const {
    cpu_set_t others = allowed_;
    CPU_CLR(static_cast<std::size_t>(without), &others);
    if (is_known_ && CPU_COUNT(&others) > 0) pthread_setaffinity_np(thread, sizeof others, &others);
  }

 private:
  cpu_set_t allowed_;
  bool is_known_;
#else
  std::size_t size() const { return kMaxThreads; }
  static int current() { return 0; }
  void keep(pthread_t, int) const {}
#endif
  static constexpr std::size_t kMaxThreads = 1'024;  // if the system does not report cores: no bound
};

class Pool {
 public:
  void run(const Cores& cores, std::size_t num_helpers, std::size_t count, const Work& work) {
    {
      std::lock_guard lock(mutex_);
      while (threads_.size() < num_helpers && start_thread()) core_ = -1;
      // A woken thread tends to run on the core of the thread that wakes it, and would only interrupt that thread.
      if (const int core = Cores::current(); core != core_) {
        for (pthread_t thread : threads_) cores.keep(thread, core);
        core_ = core;
      }
      work_ = &work, count_ = count, num_helpers_ = num_helpers;
      next_ = 0, failure_ = nullptr;
      ++round_;
    }
    has_work_.notify_all();
    take_turns(0);
    std::unique_lock lock(mutex_);
    num_helpers_ = 0;  // does not wait for helpers that have not woken up yet
    is_done_.wait(lock, [this] { return num_busy_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  /// False if the system refuses more threads or memory; the existing threads are enough.
  bool start_thread() {
    try {
      threads_.reserve(threads_.size() + 1);
      std::thread thread([this, worker = threads_.size() + 1] { help(worker); });
      threads_.push_back(thread.native_handle());
      thread.detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  void help(std::size_t worker) {
    std::size_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      has_work_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      if (worker > num_helpers_) continue;
      ++num_busy_;
      lock.unlock();
      take_turns(worker);
      lock.lock();
      if (--num_busy_ == 0) is_done_.notify_one();
    }
  }

  void take_turns(std::size_t worker) {
    try {
      for (std::size_t index = next_++; index < count_; index = next_++) (*work_)(worker, index);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = count_;
    }
  }

  std::mutex mutex_;
  std::condition_variable has_work_, is_done_;
  std::vector<pthread_t> threads_;
  int core_ = -1;  // the core without helpers
  std::size_t num_helpers_ = 0, num_busy_ = 0, round_ = 0, count_ = 0;
  const Work* work_ = nullptr;
  std::atomic<std::size_t> next_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

void parallel_for(int num_threads, std::size_t count, const Work& work) {
  // Never destroyed, because its threads may still wait when the process ends. A forked process has none of the
  // threads, and the fork may have happened while the pool was in use.
  struct Owned {
    Pool pool;
    std::mutex in_use;
    const pid_t owner = getpid();
  };
  static std::atomic<Owned*> latest = new Owned;
  if (num_threads > 1 && count > 1) {
    const Cores cores;  // read every time, because a process may be pinned at any time
    const std::size_t num_workers = std::min({static_cast<std::size_t>(num_threads), count, cores.size()});
    Owned* owned = latest;
    if (owned->owner != getpid()) {
      auto* const own = new Owned;
      if (latest.compare_exchange_strong(owned, own)) owned = own;  // otherwise another thread's, which was first
    }
    const std::unique_lock lock(owned->in_use, std::try_to_lock);
    if (num_workers > 1 && lock) return owned->pool.run(cores, num_workers - 1, count, work);
  }
  for (std::size_t index = 0; index < count; ++index) work(0, index);
}

}  // namespace speculant
