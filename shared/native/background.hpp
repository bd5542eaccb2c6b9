// Work that can wait until a response is sent.
#pragma once

#include <functional>
#include <memory>

namespace speculant {

/// Does one piece of work whenever it is woken, on its own thread, which is started on first use.
///
/// Waking a thread takes a system call, and may interrupt the caller's thread. So while it is woken often, the thread
/// polls every half millisecond.
class Background {
 public:
  explicit Background(std::function<void()> work);
  /// Waits for running work; requested work that has not begun is dropped.
  ~Background();
  Background(const Background&) = delete;

  /// Schedule the work; one run serves all calls made before it begins. If no thread can be started, do the work now.
  void wake();

 private:
  struct Thread;
  std::function<void()> work_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace speculant
