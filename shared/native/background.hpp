// Work that can wait until an answer is given.
#pragma once

#include <functional>
#include <memory>

namespace speculant {

/// Does one piece of work whenever it is woken, on a thread of its own, which is made at the first time.
///
/// To wake a thread takes a system call, and may interrupt the one that calls. So while it is woken often, the thread
/// looks by itself, every half millisecond.
class Background {
 public:
  explicit Background(std::function<void()> work);
  /// Waits for the work that is under way; what was asked for and has not begun is left out.
  ~Background();
  Background(const Background&) = delete;

  /// Have the work done soon; once is enough for all calls before it begins. Where no thread can be made, it is done
  /// now.
  void wake();

 private:
  struct Thread;
  std::function<void()> work_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace speculant
