// What a client must know of an answer before it verifies a draft: that it breaks no rule of the wire.
#pragma once

#include <cstdint>
#include <span>

#include "wire.hpp"

namespace speculant {

/// Fill arrays that stand for defaults, and check all: a draft that passes can be verified safely. `budgets`: per
/// sequence, most nodes asked for. `vocabulary_size`: ids of drafts and distributions must be below it. Throws
/// RequestError.
void check_answer(wire::DraftResponse& answer, std::span<const std::int64_t> budgets, std::int64_t vocabulary_size);

}  // namespace speculant
