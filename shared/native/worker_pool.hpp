// Threads that help with the sequences of a batch.
#pragma once

#include <cstddef>
#include <functional>

namespace speculant {

/// Call `work(worker, index)` for every index below `count`, on a limited number of threads including this one;
/// `worker` identifies the thread. Returns when all calls are done, and rethrows the first exception. If calls overlap,
/// one of them uses the threads and the others work alone. A call also works alone if no thread can be started.
///
/// The threads are started on first use, wait for the next call, and end with the process.
void parallel_for(int num_threads, std::size_t count,
                  const std::function<void(std::size_t worker, std::size_t index)>& work);

}  // namespace speculant
