// Zeroed memory for large tables, allocated page by page on write and freed in parts.
#pragma once

#include <cstddef>
#include <utility>

namespace speculant {

/// Zeroed memory. If it is large, the system allocates it page by page on write, and it can be freed in parts.
template <class Number>
class Zeros {
 public:
  explicit Zeros(std::size_t size);
  Zeros(Zeros&& other) noexcept { *this = std::move(other); }
  Zeros& operator=(Zeros&& other) noexcept {
    std::swap(memory_, other.memory_), std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Zeros();

  Number& operator[](std::size_t index) const { return static_cast<Number*>(memory_)[index]; }
  std::size_t num_bytes() const { return num_bytes_; }
  /// Free a part of the memory, from its end; its content is lost. Returns whether any is left.
  bool shrink();

 private:
  void* memory_ = nullptr;
  std::size_t num_bytes_ = 0;
};

namespace zeros {

// Bytes freed at a time: 64 pages, which take a few tenths of a millisecond.
inline constexpr std::size_t kGivenBack = 1 << 18;
void* take(std::size_t num_bytes);
/// Free memory from its end, at most `most` bytes; return the number of bytes left.
std::size_t give_back(void* memory, std::size_t num_bytes, std::size_t most);

}  // namespace zeros

template <class Number>
Zeros<Number>::Zeros(std::size_t size)
    : memory_(zeros::take(size * sizeof(Number))), num_bytes_(size * sizeof(Number)) {}

template <class Number>
Zeros<Number>::~Zeros() {
  num_bytes_ = zeros::give_back(memory_, num_bytes_, num_bytes_);
}

template <class Number>
bool Zeros<Number>::shrink() {
  num_bytes_ = zeros::give_back(memory_, num_bytes_, zeros::kGivenBack);
  return num_bytes_ > 0;
}

}  // namespace speculant
