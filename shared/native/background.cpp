#include "background.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace speculant {

// Interval at which the thread polls for work: several times in a pass of a model, which takes milliseconds. A guess.
constexpr auto kInterval = std::chrono::microseconds(500);
constexpr int kPatience = 400;  // intervals without work until the thread sleeps: 0.2 s; a guess

struct Background::Thread {
  explicit Thread(const std::function<void()>& work) : thread([this, &work] { run(work); }) {}

  void run(const std::function<void()>& work) {
    for (int num_idle = 0; !is_ending;) {
      if (is_wanted.exchange(false)) {
        work();
        num_idle = 0;
      }
      std::unique_lock lock(mutex);
      is_asleep = ++num_idle > kPatience;
      const auto is_needed = [this] { return is_ending || (is_asleep && is_wanted); };
      if (is_asleep) {
        is_changed.wait(lock, is_needed);
        num_idle = 0, is_asleep = false;
      } else {
        is_changed.wait_for(lock, kInterval, is_needed);
      }
    }
  }

  const pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable is_changed;
  std::atomic<bool> is_wanted = false, is_asleep = false, is_ending = false;
  std::thread thread;  // last, because it uses the others
};

Background::Background(std::function<void()> work) : work_(std::move(work)) {}

Background::~Background() {
  if (!thread_) return;
  if (thread_->owner != getpid()) {  // a forked process does not have the thread
    static_cast<void>(thread_.release());
    return;
  }
  {
    std::lock_guard lock(thread_->mutex);
    thread_->is_ending = true;
  }
  thread_->is_changed.notify_one();
  thread_->thread.join();
}

void Background::wake() {
  if (thread_ && thread_->owner != getpid()) static_cast<void>(thread_.release());
  try {
    if (!thread_) thread_ = std::make_unique<Thread>(work_);
  } catch (const std::system_error&) {
    return work_();
  }
  thread_->is_wanted = true;
  if (!thread_->is_asleep) return;
  std::lock_guard lock(thread_->mutex);  // the thread is waiting by now, or polls again before it waits
  thread_->is_changed.notify_one();
}

}  // namespace speculant
