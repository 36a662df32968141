// Kernels are compiled for a plain and for a wide machine; the loader picks. One wheel serves both.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DOVETAIL_CLONES __attribute__((target_clones("arch=x86-64-v3", "default"), optimize("O3")))
#else
#define DOVETAIL_CLONES
#endif
