// Attributes for loops that are compiled twice: for every processor of the architecture, and for processors with wider
// vectors.
#pragma once

// Integers, and sums and products of floats without contraction, are the same in both versions. Sanitizers are excluded
// because they start later than the choice of a version.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define SPECULANT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define SPECULANT_WIDE
#endif
/// For functions that such loops call, so that they are compiled with the loops.
#define SPECULANT_INLINE inline __attribute__((always_inline))
