#include "wire.hpp"

#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

namespace speculant::wire {
namespace {

enum WireType : std::uint32_t { kVarint, kFixed64, kLength, kGroup, kEndOfGroup, kFixed32 };
constexpr int kMaxNesting = 100;
constexpr int kTagBytes = 5, kVarintBytes = 10;  // most that protobuf reads
constexpr std::size_t kEnvelopeBytes = 16;       // most that an envelope adds
constexpr std::int64_t kNsPerS = 1'000'000'000;

[[noreturn]] void fail() { throw ParseError(); }

/// Whether protobuf takes bytes for a string: no surrogates, nothing longer than it must be.
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

/// Goes through the fields of a message.
class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}

  /// Go to the next field, past the one before if nobody read it; false at the end.
  bool next() {
    if (!is_read_) skip(type_, field_, 0);
    if (data_.empty()) return false;
    std::tie(field_, type_) = tag();
    if (field_ == 0) fail();
    is_read_ = false;
    return true;
  }
  std::uint32_t field() const { return field_; }

  // Each reads the field if it has the type that it should have; else it stays unknown.
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
  void read(Part& part) {
    if (takes(kLength)) part.add(bytes());
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

std::int64_t read_duration(std::string_view payload) {
  std::int64_t seconds = 0;
  std::int32_t nanos = 0;
  for (Reader reader(payload); reader.next();) {
    if (reader.field() == 1) reader.read(seconds);
    if (reader.field() == 2) reader.read(nanos);
  }
  // Of more than a number can say, something: whatever wraps is unsigned.
  const std::uint64_t whole = static_cast<std::uint64_t>(seconds) * static_cast<std::uint64_t>(kNsPerS);
  return static_cast<std::int64_t>(whole + static_cast<std::uint64_t>(std::int64_t{nanos}));
}

/// Writes fields in the order in which they are given.
class Writer {
 public:
  explicit Writer(std::size_t expected_bytes) {
    message_.buffer_.reserve(expected_bytes + kEnvelopeBytes);
    message_.buffer_.resize(kEnvelopeBytes);
    message_.start_ = kEnvelopeBytes;
  }

  void fixed64(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;
    tag(field, kFixed64);
    append(&value, sizeof value);
  }
  void number(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;
    tag(field, kVarint);
    varint(value);
  }
  /// The beginning of what is `size` bytes long.
  void length(std::uint32_t field, std::size_t size) {
    tag(field, kLength);
    varint(size);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    if (value.empty()) return;
    length(field, value.size());
    out() += value;
  }
  template <class Number>
  void array(std::uint32_t field, const std::vector<Number>& values) {
    const auto* data = reinterpret_cast<const char*>(values.data());
    bytes(field, {data, values.size() * sizeof(Number)});
  }
  Written done() { return std::move(message_); }

 private:
  std::string& out() { return message_.buffer_; }
  void tag(std::uint32_t field, WireType type) { varint(field << 3 | type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out() += static_cast<char>(value | 0x80);
    out() += static_cast<char>(value);
  }
  void append(const void* data, std::size_t size) { out().append(static_cast<const char*>(data), size); }

  Written message_;
};

}  // namespace

DraftRequest read_request(std::string_view payload) {
  DraftRequest request;
  Part options;
  for (Reader reader(payload); reader.next();) {
    switch (reader.field()) {
      case 1:
        reader.read(request.graph);
        break;
      case 2:
        reader.read(request.session_ids);
        break;
      case 3:
        reader.read(request.positions);
        break;
      case 4:
        reader.read(request.context_lengths);
        break;
      case 5:
        reader.read(request.context_tokens);
        break;
      case 6:
        reader.read(request.node_budgets);
        break;
      case 7:
        reader.read(options);
        break;
      case 8:
        reader.read(request.seeds);
        break;
      case 9:
        reader.read(request.feedback_draft_ids);
        break;
      case 10:
        reader.read(request.feedback_row_counts);
        break;
      case 11:
        reader.read(request.feedback_nodes);
        break;
      case 12:
        reader.read(request.feedback_width);
        break;
      case 13:
        reader.read(request.feedback_tokens);
        break;
    }
  }
  request.options = options.view();
  return request;
}

DraftResponse read_response(std::string_view payload) {
  DraftResponse response;
  Part server_time;
  for (Reader reader(payload); reader.next();) {
    switch (reader.field()) {
      case 1:
        reader.read(response.graph_generation);
        break;
      case 2:
        reader.read(response.draft_id);
        break;
      case 3:
        reader.read(response.sequence_statuses);
        break;
      case 4:
        reader.read(response.next_positions);
        break;
      case 5:
        reader.read(response.draft_lengths);
        break;
      case 6:
        reader.read(response.draft_tokens);
        break;
      case 7:
        reader.read(response.draft_parents);
        break;
      case 8:
        reader.read(response.draft_path_probabilities);
        break;
      case 9:
        reader.read(response.candidate_counts);
        break;
      case 10:
        reader.read(response.candidate_tokens);
        break;
      case 11:
        reader.read(response.candidate_probabilities);
        break;
      case 12:
        reader.read(server_time);
        break;
      case 13:
        reader.read(response.ended_early);
        break;
      case 14:
        reader.read(response.sequence_generations);
        break;
    }
  }
  response.server_time_ns = read_duration(server_time.view());
  return response;
}

StreamDraftRequest read_stream_request(std::string_view payload) {
  StreamDraftRequest request;
  for (Reader reader(payload); reader.next();) {
    if (reader.field() == 1) reader.read(request.step_id);
    if (reader.field() == 2) reader.read(request.draft);
  }
  return request;
}

StreamDraftResponse read_stream_response(std::string_view payload) {
  StreamDraftResponse response;
  for (Reader reader(payload); reader.next();) {
    if (reader.field() == 1) reader.read(response.step_id);
    if (reader.field() != 2 && reader.field() != 3) continue;
    const bool is_draft = reader.field() == 2;
    Part run;
    reader.read(run);
    if (!run.has_run()) continue;
    (is_draft ? response.error : response.draft) = {};
    (is_draft ? response.draft : response.error).add(run.view());
  }
  return response;
}

Written write(const DraftRequest& request) {
  Writer writer(128 + request.graph.size() + request.options.size() + 32 * request.session_ids.size() +
                4 * (request.context_tokens.size() + request.feedback_nodes.size() + request.feedback_tokens.size()));
  writer.bytes(1, request.graph);
  writer.array(2, request.session_ids);
  writer.array(3, request.positions);
  writer.array(4, request.context_lengths);
  writer.array(5, request.context_tokens);
  writer.array(6, request.node_budgets);
  writer.bytes(7, request.options);
  writer.array(8, request.seeds);
  writer.array(9, request.feedback_draft_ids);
  writer.array(10, request.feedback_row_counts);
  writer.array(11, request.feedback_nodes);
  writer.number(12, request.feedback_width);
  writer.array(13, request.feedback_tokens);
  return writer.done();
}

Written write(const DraftResponse& response) {
  Writer writer(128 + 24 * response.sequence_statuses.size() + 16 * response.draft_tokens.size() +
                8 * response.candidate_tokens.size());
  writer.fixed64(1, response.graph_generation);
  writer.fixed64(2, response.draft_id);
  writer.array(3, response.sequence_statuses);
  writer.array(4, response.next_positions);
  writer.array(5, response.draft_lengths);
  writer.array(6, response.draft_tokens);
  writer.array(7, response.draft_parents);
  writer.array(8, response.draft_path_probabilities);
  writer.array(9, response.candidate_counts);
  writer.array(10, response.candidate_tokens);
  writer.array(11, response.candidate_probabilities);
  Writer time(16);
  time.number(1, static_cast<std::uint64_t>(response.server_time_ns / kNsPerS));
  time.number(2, static_cast<std::uint64_t>(response.server_time_ns % kNsPerS));
  writer.bytes(12, time.done().view());
  writer.array(13, response.ended_early);
  writer.array(14, response.sequence_generations);
  return writer.done();
}

void envelope(Written& message, std::uint64_t step_id) {
  Writer head(0);
  const std::size_t size = message.view().size();
  head.fixed64(1, step_id);
  head.length(2, size);
  const Written written = head.done();
  const std::string_view bytes = written.view();
  message.start_ -= bytes.size();
  std::memcpy(message.buffer_.data() + message.start_, bytes.data(), bytes.size());
}

}  // namespace speculant::wire
