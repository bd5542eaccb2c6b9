// Memory of zeros for large tables, which the system gives page by page and takes back in parts.
#pragma once

#include <cstddef>
#include <utility>

namespace speculant {

/// Zeros. Of many, the system gives the memory page by page, when it is written to, and takes it back in parts.
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
  /// Give a part of the memory back, from its end; what it held is lost. Returns whether any is left.
  bool shrink();

 private:
  void* memory_ = nullptr;
  std::size_t num_bytes_ = 0;
};

namespace zeros {

// Bytes that are given back at a time: 64 pages, for which a system takes a few tenths of a millisecond.
inline constexpr std::size_t kGivenBack = 1 << 18;
void* take(std::size_t num_bytes);
/// Give memory back, from its end, at most so many bytes at a time; returns how many are left.
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
