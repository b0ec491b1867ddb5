#define INNKEEPER_VARIANT variant_avxvnni
#include "variant.h"

namespace innkeeper {
extern const Kernels kernels_avxvnni;
const Kernels kernels_avxvnni = variant_avxvnni::make_kernels("avxvnni");
}  // namespace innkeeper
