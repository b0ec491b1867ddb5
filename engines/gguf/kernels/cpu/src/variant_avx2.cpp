#define INNKEEPER_VARIANT variant_avx2
#include "variant.h"

namespace innkeeper {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = variant_avx2::make_kernels("avx2");
}  // namespace innkeeper
