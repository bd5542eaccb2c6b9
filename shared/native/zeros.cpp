#include "zeros.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace speculant::zeros {
namespace {

// Allocations from this number of bytes on are mapped from the system. glibc's malloc has the same threshold by
// default.
constexpr std::size_t kMapped = 1 << 17;

}  // namespace

void* take(std::size_t num_bytes) {
  void* const memory = num_bytes < kMapped
                           ? std::calloc(num_bytes, 1)
                           : mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == nullptr || memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

std::size_t give_back(void* memory, std::size_t num_bytes, std::size_t most) {
  if (num_bytes == 0) return 0;
  if (num_bytes < kMapped) {
    std::free(memory);
    return 0;
  }
  // Never less than one part; otherwise the rest would look like memory from malloc.
  const std::size_t left = num_bytes > most + kMapped ? num_bytes - most : 0;
  munmap(static_cast<char*>(memory) + left, num_bytes - left);
  return left;
}

}  // namespace speculant::zeros
