#include "rows.hpp"

#include <algorithm>
#include <utility>

namespace speculant {
namespace {

// Number of last tokens that must agree for a row to be recognised. Two requests rarely share this many at the same
// position. A guess: if it happens, drafts are worse and the text is the same.
constexpr std::size_t kTail = 256;

}  // namespace

bool RowTracker::continues(const Row& row, const Tracked& former) const {
  if (former.id == 0 || row.name != former.name || row.text.size() < former.size) return false;
  if (!row.name.empty()) return true;  // the engine identifies it
  if (row.text.size() > former.size + most_new_) return false;
  return std::equal(former.tail.begin(), former.tail.end(), row.text.data() + former.size - former.tail.size());
}

MatchedRows RowTracker::match(std::span<const Row> rows) {
  MatchedRows matched;
  std::vector<Tracked> now(rows.size());
  const auto take = [](Tracked& former) { return std::exchange(former, {}); };
  for (std::size_t index = 0; index < std::min(rows.size(), tracked_.size()); ++index) {
    if (continues(rows[index], tracked_[index])) now[index] = take(tracked_[index]);
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const Row& row = rows[index];
    Tracked& tracked = now[index];
    if (tracked.id == 0) {
      Tracked* longest = nullptr;
      for (Tracked& former : tracked_) {
        if (former.id != 0 && (longest == nullptr || former.size > longest->size) && continues(row, former)) {
          longest = &former;
        }
      }
      if (longest != nullptr) tracked = take(*longest);
    }
    if (tracked.id == 0) {
      tracked = {.id = ++last_id_, .name = std::string(row.name), .begun = row.text.size()};
      matched.begun.push_back(static_cast<std::uint32_t>(index));
    } else {
      matched.num_new += row.text.size() - tracked.size;
    }
    tracked.size = row.text.size();
    const auto tail = row.text.last(std::min(tracked.size, kTail));
    tracked.tail.assign(tail.begin(), tail.end());
    matched.ids.push_back(tracked.id);
  }
  for (Tracked& former : tracked_) {
    if (former.id == 0) continue;
    matched.ended.push_back(former.id);
    if (former.read < former.size) {
      matched.unread.push_back({former.id, former.begun, former.read, former.size, std::move(former.tail)});
    }
  }
  tracked_ = std::move(now);
  return matched;
}

std::vector<std::size_t> RowTracker::prompt_lengths() const {
  std::vector<std::size_t> lengths;
  for (const Tracked& tracked : tracked_) lengths.push_back(tracked.read == 0 ? tracked.begun : 0);
  return lengths;
}

void RowTracker::mark_read() {
  for (Tracked& tracked : tracked_) tracked.read = tracked.size;
}

}  // namespace speculant
