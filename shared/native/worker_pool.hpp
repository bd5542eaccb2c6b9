// Threads that help with the sequences of a batch.
#pragma once

#include <cstddef>
#include <functional>

namespace speculant {

/// Call `work(worker, index)` for every index below `count`, on as many threads at most, this one among them; `worker`
/// tells them apart. Returns when all are done; the first exception is thrown again. Of calls that overlap, one has the
/// threads, and the others work alone, as does one for which no thread can be started.
///
/// The threads are made when they are first needed, wait for the next call, and end with the process.
void spread(int num_threads, std::size_t count, const std::function<void(std::size_t worker, std::size_t index)>& work);

}  // namespace speculant
