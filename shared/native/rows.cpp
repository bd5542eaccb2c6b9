#include "rows.hpp"

#include <algorithm>
#include <utility>

namespace speculant {
namespace {

// Number of last tokens that are kept, and that must agree for a sequence to be recognised in another row. Two requests
// rarely share this many at the same position. A guess: if it happens, drafts are worse and the text is the same.
constexpr std::size_t kTail = 256;
// Number of last tokens that must agree in the same row. Fewer, because between two passes the caches are cold.
constexpr std::size_t kTailInPlace = 32;

}  // namespace

bool RowTracker::continues(const Row& row, const Tracked& former, std::size_t num_compared) const {
  if (former.id == 0 || row.name != former.name || row.text.size() < former.size) return false;
  if (!row.name.empty()) return true;  // the engine identifies it
  if (row.text.size() > former.size + most_new_) return false;
  const std::size_t count = std::min(num_compared, former.tail.size());
  return std::equal(former.tail.end() - static_cast<std::ptrdiff_t>(count), former.tail.end(),
                    row.text.data() + former.size - count);
}

void RowTracker::Tracked::extend(std::span<const std::int32_t> text) {
  const auto added = text.last(std::min(text.size() - size, kTail));
  if (tail.size() + added.size() > 2 * kTail) tail.erase(tail.begin(), tail.end() - kTail);
  tail.insert(tail.end(), added.begin(), added.end());
  size = text.size();
}

bool RowTracker::follow(std::size_t index, const Row& row) {
  const bool is_same = continues(row, tracked_[index], kTailInPlace);
  if (is_same) tracked_[index].extend(row.text);
  return is_same;
}

MatchedRows RowTracker::match(std::span<const Row> rows) {
  MatchedRows matched;
  std::vector<Tracked> former(rows.size());
  former.swap(tracked_);  // most rows keep their sequences
  const std::size_t num_common = std::min(rows.size(), former.size());
  for (std::size_t index = 0; index < num_common; ++index) {
    if (continues(rows[index], former[index], kTailInPlace)) std::swap(tracked_[index], former[index]);
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const Row& row = rows[index];
    Tracked& tracked = tracked_[index];
    if (tracked.id == 0) {
      Tracked* longest = nullptr;
      for (Tracked& each : former) {
        if (each.id != 0 && (longest == nullptr || each.size > longest->size) && continues(row, each, kTail)) {
          longest = &each;
        }
      }
      if (longest != nullptr) std::swap(tracked, *longest);
    }
    if (tracked.id == 0) {
      tracked = {.id = ++last_id_, .name = std::string(row.name), .begun = row.text.size()};
      matched.begun.push_back(static_cast<std::uint32_t>(index));
    } else {
      matched.num_new += row.text.size() - tracked.size;
    }
    if (!row.name.empty()) tracked.size = 0, tracked.tail.clear();  // its tokens were not compared
    tracked.extend(row.text);
    matched.ids.push_back(tracked.id);
  }
  for (Tracked& each : former) {
    if (each.id == 0) continue;
    matched.ended.push_back(each.id);
    if (each.read < each.size) {
      if (each.tail.size() > kTail) each.tail.erase(each.tail.begin(), each.tail.end() - kTail);
      matched.unread.push_back({each.id, each.begun, each.read, each.size, std::move(each.tail)});
    }
  }
  return matched;
}

std::vector<std::size_t> RowTracker::prompt_lengths() const {
  std::vector<std::size_t> lengths;
  for (const Tracked& tracked : tracked_) lengths.push_back(tracked.read == 0 ? tracked.begun : 0);
  return lengths;
}

void RowTracker::mark_prompts_read() {
  for (Tracked& tracked : tracked_) {
    if (tracked.read == 0) tracked.read = tracked.begun;
  }
}

void RowTracker::mark_read() {
  for (Tracked& tracked : tracked_) tracked.read = tracked.size;
}

}  // namespace speculant
