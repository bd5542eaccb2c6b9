#include "mixer/features.hpp"

#include <algorithm>
#include <bit>

namespace speculant::mixer {
namespace {

/// The base-2 logarithm of a positive, normal number, within 0.00004; the same on every machine.
constexpr float octaves(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto whole = static_cast<float>(static_cast<std::int32_t>(bits >> 23) - 127);
  const float part = std::bit_cast<float>((bits & 0x007F'FFFF) | 0x3F80'0000) - 1.0F;
  const float sum = ((0.15026015F - 0.04529863F * part) * part - 0.26887908F) * part + 0.44225097F;
  return whole + (part + part * (1.0F - part) * sum);
}

/// The logarithm of a whole number plus `tenths` tenths; a table holds the first results.
template <int tenths>
float octaves_of(std::int64_t count) {
  static constexpr float kMore = static_cast<float>(tenths) * 0.1F;
  static constexpr auto kTable = [] {
    std::array<float, 512> table{};
    for (std::size_t each = 0; each < table.size(); ++each) table[each] = octaves(static_cast<float>(each) + kMore);
    return table;
  }();
  const auto place = static_cast<std::size_t>(count);
  return place < kTable.size() ? kTable[place] : octaves(static_cast<float>(count) + kMore);
}
float octaves_of(std::int64_t count) { return octaves_of<10>(count); }

std::size_t slot_of(const MatchedContext& context) {
  const std::int64_t length = std::max<std::int64_t>(context.length, 1);
  switch (context.source) {
    case Source::kCorpus:
      return static_cast<std::size_t>(std::min<std::int64_t>(length, 5)) - 1;
    case Source::kSession:
      return length < 4 ? static_cast<std::size_t>(length) + 4 : length < 6 ? 8 : length < 12 ? 9 : 10;
    case Source::kSkipGram:
      return 11;
    case Source::kLearned:
      return length < 6 ? 12 : 13;
    case Source::kTargetRows:
      return length == 1 ? 14 : 15;
    case Source::kNeural:
      break;
  }
  return 16;
}

}  // namespace

bool Observer::look(const Sources& sources, const MatchedContexts& found, const Mixture& mixture, bool is_inside,
                    double reach) {
  choose(mixture, reach);
  if (scored_.empty()) return false;
  num_common_ = 0;
  num_values_.fill(0);
  scores_.clear(), own_.clear();
  add_contexts(found, mixture);
  double sum = 0.0;
  for (std::size_t place = 0; place < scored_.size(); ++place) {
    const Candidate& candidate = mixture.candidates[static_cast<std::size_t>(scored_[place])];
    sum += std::min(candidate.probability, 1.0);
    add_candidate(sources, candidate, place);
  }
  scores_.push_back(octaves(static_cast<float>(std::max(kLeastOthers, 1.0 - sum))));
  add(scored_.size(), kIsOthers, 1.0F);
  if (is_inside) add(kInside, 1.0F);
  add(kUnclaimed, static_cast<float>(std::max(1.0 - total_, 0.0)));
  add(kCandidates, octaves_of(std::ssize(mixture.candidates)) * 0.125F);
  add(kTokens, octaves_of(sources.session_size) * 0.125F);
  for (std::size_t place = 0; place < scores_.size(); ++place) {
    own_.push_back(std::span(values_[place]).first(num_values_[place]));
  }
  return true;
}

std::size_t Observer::place_of(const Mixture& mixture, Token token) const {
  const auto is_token = [&](std::int16_t index) {
    return mixture.candidates[static_cast<std::size_t>(index)].token == token;
  };
  return static_cast<std::size_t>(std::find_if(scored_.begin(), scored_.end(), is_token) - scored_.begin());
}

/// Choose the most probable candidates, among equals the ones found first.
void Observer::choose(const Mixture& mixture, double reach) {
  scored_.clear();
  places_.fill(-1);
  total_ = 0.0;
  const auto probability_of = [&](std::int16_t index) {
    return mixture.candidates[static_cast<std::size_t>(index)].probability;
  };
  for (std::size_t index = 0; index < mixture.candidates.size(); ++index) {
    const double probability = mixture.candidates[index].probability;
    total_ += probability;
    if (probability * reach < kLeastScored) continue;
    if (scored_.size() == kMostScored) {
      if (probability <= probability_of(scored_.back())) continue;
      scored_.pop_back();
    }
    auto place = scored_.end();
    while (place != scored_.begin() && probability_of(*(place - 1)) < probability) --place;
    scored_.insert(place, static_cast<std::int16_t>(index));
  }
  for (std::size_t place = 0; place < scored_.size(); ++place) {
    places_[static_cast<std::size_t>(scored_[place] + 1)] = static_cast<std::int8_t>(place);
  }
}

void Observer::add_contexts(const MatchedContexts& found, const Mixture& mixture) {
  std::uint32_t met = 0;
  std::array<std::uint32_t, kMostScored> met_by = {};
  std::int64_t longest = 0;
  for (const MatchedContext& context : found.contexts) {
    if (context.last > mixture.members.size()) break;  // the mixture stopped before it
    if (context.source == Source::kSession) longest = std::max(longest, context.length);
    const std::size_t slot = slot_of(context);
    const std::uint32_t bit = std::uint32_t{1} << slot;
    const bool is_model = context.source == Source::kNeural;
    if (!(met & bit)) {
      met |= bit;
      add(3 * slot, 1.0F);
      add(3 * slot + 1, octaves_of(is_model ? context.length + 1 : context.occurrences) * 0.125F);
      add(3 * slot + 2, octaves_of(context.distinct) * 0.125F);
    }
    const auto successors = found.of(context);
    const float whole = octaves_of<3>(context.total);
    std::uint32_t most = 0;
    if (is_model) {
      for (const Successor& each : successors) most = std::max(most, each.count);
    }
    for (std::size_t index = 0; index < successors.size(); ++index) {
      const int place = places_[static_cast<std::size_t>(mixture.members[context.first + index] + 1)];
      if (place < 0 || met_by[static_cast<std::size_t>(place)] & bit) continue;
      met_by[static_cast<std::size_t>(place)] |= bit;
      const auto of = static_cast<std::size_t>(place);
      const std::uint32_t count = successors[index].count;
      const float share = octaves_of<1>(count);
      add(of, kFirstShare + 2 * slot, (share - whole) * 0.25F + 1.0F);
      add(of, kFirstShare + 2 * slot + 1, octaves_of(count) * 0.25F);
      if (!is_model) continue;
      add(of, kBehindBest, (share - octaves_of<1>(most)) * 0.25F);
      if (count == most) add(of, kIsModelsBest, 1.0F);
    }
  }
  add(kLongestMatch, octaves_of(longest) * 0.25F);
}

void Observer::add_candidate(const Sources& sources, const Candidate& candidate, std::size_t place) {
  const float log = octaves(static_cast<float>(std::min(candidate.probability, 1.0)));
  scores_.push_back(log);
  add(place, kCalibrated, log * 0.25F);
  add(place, kInterpolated, octaves(static_cast<float>(candidate.interpolated)) * 0.25F);
  if (place < 2) add(place, kIsFirst + place, 1.0F);
  add(place, kRank, octaves_of(static_cast<std::int64_t>(place)) * 0.25F);
  const auto& model = sources.graphs.first_model();
  const std::uint32_t row = sources.has(Source::kNeural) ? model.row_of(candidate.token) : model.num_rows();
  const bool is_modelled = row < model.num_rows();
  if (is_modelled) {
    add(place, kIsModelled, 1.0F);
    add(place, kModelRow, octaves_of(row) * 0.125F);
    add(place, kModelBias, static_cast<float>(model.tables().bias[row]) * 0x1p-13F);
  }
  if (sources.has(Source::kSession)) {
    const std::array<Token, 1> alone = {candidate.token};
    const auto add_match = [&](std::int64_t position, std::int64_t) {
      add(place, kIsInSequence, 1.0F);
      add(place, kRecency, octaves_of(sources.session_size - 1 - position) * 0.125F);
    };
    sources.session.for_each_match(kNumChains - 1, alone.data() + 1, sources.session_size, 1, 1, add_match);
  }
  if (is_modelled || !sources.has(Source::kCorpus)) return;  // the model says as much, and the graph costs more
  const Trie& trie = sources.graphs[0];
  const Context context = trie.extend({}, candidate.token);
  if (context.order == 0) return;
  const std::int64_t count = std::max<std::int64_t>(trie.level(2).total(trie.children(context)), 0);
  add(place, kIsInGraph, 1.0F);
  add(place, kGraphCount, octaves_of(count) * 0.125F);
}

}  // namespace speculant::mixer
