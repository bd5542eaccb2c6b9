#include <cstring>
#include <tuple>
#include <type_traits>

#include "wire_fields.hpp"

namespace speculant::wire {
namespace {

constexpr std::size_t kEnvelopeBytes = 16;  // size limit of an envelope: 9 for the id, 6 before the message

/// Writes fields in the order in which they are given.
class Writer {
 public:
  Writer() {
    message_.buffer_.resize(kEnvelopeBytes);
    message_.start_ = kEnvelopeBytes;
  }

  void write(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;
    tag(field, kFixed64);
    out().append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class Number>
  void write(std::uint32_t field, Number value)
    requires std::is_integral_v<Number>
  {
    if (value == 0) return;
    tag(field, kVarint);
    varint(static_cast<std::uint64_t>(value));
  }
  /// Write the beginning of a field of `size` bytes.
  void length(std::uint32_t field, std::size_t size) {
    tag(field, kLength);
    varint(size);
  }
  void write(std::uint32_t field, std::string_view bytes) {
    if (bytes.empty()) return;
    length(field, bytes.size());
    out() += bytes;
  }
  void write(std::uint32_t field, const Message& message) { write(field, std::string_view(message.bytes)); }
  void write(std::uint32_t field, const Duration& duration) {
    Writer writer;
    writer.write_fields(duration);
    write(field, writer.done().view());
  }
  template <class Number>
  void write(std::uint32_t field, const std::vector<Number>& values) {
    const auto* data = reinterpret_cast<const char*>(values.data());
    write(field, std::string_view(data, values.size() * sizeof(Number)));
  }
  template <class Struct>
  void write_fields(const Struct& message) {
    std::uint32_t number = 0;
    std::apply([&](auto... field) { (write(++number, message.*field), ...); }, kFields<Struct>);
  }
  Written done() { return std::move(message_); }

 private:
  std::string& out() { return message_.buffer_; }
  void tag(std::uint32_t field, WireType type) { varint(field << 3 | type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out() += static_cast<char>(value | 0x80);
    out() += static_cast<char>(value);
  }

  Written message_;
};

}  // namespace

template <class Struct>
Written write(const Struct& message) {
  Writer writer;
  writer.write_fields(message);
  return writer.done();
}

template Written write(const DraftRequest& request);
template Written write(const DraftResponse& response);

void envelope(Written& message, std::uint64_t step_id) {
  Writer head;
  const std::size_t size = message.view().size();
  head.write(1, step_id);
  head.length(2, size);
  const Written written = head.done();
  const std::string_view bytes = written.view();
  message.start_ -= bytes.size();
  std::memcpy(message.buffer_.data() + message.start_, bytes.data(), bytes.size());
}

}  // namespace speculant::wire
