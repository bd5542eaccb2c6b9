#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "wire_fields.hpp"

namespace speculant::wire {
namespace {

constexpr int kMaxNesting = 100;                 // groups in groups, as protobuf's own parsers allow
constexpr int kTagBytes = 5, kVarintBytes = 10;  // limits of protobuf

[[noreturn]] void fail() { throw ParseError(); }

/// Whether protobuf accepts bytes as a string: no surrogates, and no overlong encodings.
bool is_utf8(std::string_view text) {
  const auto byte_at = [&](std::size_t index) { return static_cast<std::uint8_t>(text[index]); };
  for (std::size_t index = 0; index < text.size();) {
    const std::uint8_t lead = byte_at(index);
    std::size_t more = 0;
    std::uint32_t point = lead, least = 0;
    if (lead >= 0x80) {
      if (lead >= 0xF8 || lead < 0xC0) return false;
      more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
      point = lead & (0x3Fu >> more);
      least = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
    }
    if (index + more >= text.size()) return false;
    for (std::size_t each = 1; each <= more; ++each) {
      if ((byte_at(index + each) & 0xC0) != 0x80) return false;
      point = point << 6 | (byte_at(index + each) & 0x3Fu);
    }
    if (point < least || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    index += more + 1;
  }
  return true;
}

/// Read every known field into its member.
template <class Struct>
void read_fields(std::string_view payload, Struct& message);

/// Iterates over the fields of a message.
class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}

  /// Go to the next field, and skip the previous one if it was not read; false at the end.
  bool next() {
    if (!is_read_) skip(type_, field_, 0);
    if (data_.empty()) return false;
    std::tie(field_, type_) = tag();
    if (field_ == 0) fail();
    is_read_ = false;
    return true;
  }
  std::uint32_t field() const { return field_; }

  // Each overload reads the field if it has the expected type; otherwise the field stays unknown.
  template <class Number>
  void read(Number& value) {
    if constexpr (std::is_same_v<Number, std::uint64_t>) {
      if (takes(kFixed64)) value = fixed<std::uint64_t>();
    } else if (takes(kVarint)) {
      value = static_cast<Number>(varint(kVarintBytes));
    }
  }
  void read(std::string& text) {
    if (!takes(kLength)) return;
    const std::string_view found = bytes();
    if (!is_utf8(found)) fail();
    text = found;
  }
  /// Append one run of a message, which may come in several runs; false if the field has another type.
  bool read(Message& message) {
    const bool is_one = takes(kLength);
    if (is_one) message.bytes += bytes();
    return is_one;
  }
  void read(Duration& duration) {
    if (takes(kLength)) read_fields(bytes(), duration);
  }
  template <class Number>
  void read(std::vector<Number>& values) {
    if (takes(sizeof(Number) == 8 ? kFixed64 : kFixed32)) {
      values.push_back(fixed<Number>());
    } else if (takes(kLength)) {
      const std::string_view run = bytes();
      if (run.size() % sizeof(Number) != 0) fail();
      const std::size_t size = values.size();
      values.resize(size + run.size() / sizeof(Number));
      if (!run.empty()) std::memcpy(values.data() + size, run.data(), run.size());
    }
  }

 private:
  bool takes(WireType type) {
    if (is_read_ || type_ != type) return false;
    return is_read_ = true;
  }
  std::uint64_t varint(int max_bytes) {
    std::uint64_t value = 0;
    for (int index = 0; index < max_bytes; ++index) {
      if (data_.empty()) fail();
      const auto byte = static_cast<std::uint8_t>(data_.front());
      data_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7Fu} << 7 * index;
      if (byte < 0x80) return value;
    }
    fail();
  }
  std::pair<std::uint32_t, WireType> tag() {
    const std::uint64_t word = varint(kTagBytes);
    if (word > std::numeric_limits<std::uint32_t>::max()) fail();
    return {static_cast<std::uint32_t>(word >> 3), static_cast<WireType>(word & 7)};
  }
  std::string_view take(std::uint64_t size) {
    if (size > data_.size()) fail();
    const std::string_view taken = data_.substr(0, static_cast<std::size_t>(size));
    data_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view bytes() { return take(varint(kTagBytes)); }
  template <class Number>
  Number fixed() {
    Number value;
    std::memcpy(&value, take(sizeof(Number)).data(), sizeof(Number));
    return value;
  }
  void skip(WireType type, std::uint32_t field, int nesting) {
    switch (type) {
      case kVarint:
        varint(kVarintBytes);
        break;
      case kFixed64:
        take(8);
        break;
      case kLength:
        bytes();
        break;
      case kFixed32:
        take(4);
        break;
      case kGroup:
        if (nesting == kMaxNesting) fail();
        for (;;) {
          const auto [inner, inner_type] = tag();
          if (inner_type == kEndOfGroup) {
            if (inner != field) fail();
            break;
          }
          skip(inner_type, inner, nesting + 1);
        }
        break;
      default:
        fail();
    }
  }

  std::string_view data_;
  std::uint32_t field_ = 0;
  WireType type_ = kVarint;
  bool is_read_ = true;
};

template <class Struct>
void read_fields(std::string_view payload, Struct& message) {
  for (Reader reader(payload); reader.next();) {
    std::uint32_t number = 0;
    const auto read = [&](auto field) {
      if (++number == reader.field()) reader.read(message.*field);
    };
    std::apply([&](auto... field) { (read(field), ...); }, kFields<Struct>);
  }
}

template <class Struct>
Struct message_of(std::string_view payload) {
  Struct message;
  read_fields(payload, message);
  return message;
}

}  // namespace

DraftRequest read_request(std::string_view payload) { return message_of<DraftRequest>(payload); }

DraftResponse read_response(std::string_view payload) { return message_of<DraftResponse>(payload); }

StreamDraftRequest read_stream_request(std::string_view payload) { return message_of<StreamDraftRequest>(payload); }

StreamDraftResponse read_stream_response(std::string_view payload) {
  StreamDraftResponse response;
  for (Reader reader(payload); reader.next();) {
    if (reader.field() == 1) reader.read(response.step_id);
    if (reader.field() != 2 && reader.field() != 3) continue;
    const bool is_error = reader.field() == 3;
    std::string& bytes = response.step.bytes;
    const std::size_t size_before = bytes.size();
    if (!reader.read(response.step)) continue;
    // A draft after an error, or an error after a draft, replaces it.
    if (response.is_error != is_error) bytes.erase(0, size_before);
    response.is_error = is_error;
  }
  return response;
}

}  // namespace speculant::wire
