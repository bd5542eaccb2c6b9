// Loops that are worth being compiled twice: for every processor of the kind, and for those with wider vectors.
#pragma once

// Whole numbers, and sums and products of floats that are not contracted, are the same in both. Sanitizers start later
// than the choice is made.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define SPECULANT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define SPECULANT_WIDE
#endif
/// Of what such loops call, so that it is compiled with them.
#define SPECULANT_INLINE inline __attribute__((always_inline))
