// Which variants this machine can run, and the one in use.
#include <atomic>
#include <cstring>

#include "table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace innkeeper {

extern const Kernels kernels_generic;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512vnni;
#if defined(INNKEEPER_HAS_AVXVNNI)
extern const Kernels kernels_avxvnni;
#endif
#elif defined(__aarch64__)
extern const Kernels kernels_dotprod;
#endif

namespace {

#if defined(__aarch64__)
bool has_dot_product() {
#if defined(__APPLE__)
  int64_t has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#elif defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#else
  return false;
#endif
}
#endif

struct Usable {
  const Kernels* variants[6];
  int count = 0;

  Usable() {
#if defined(__x86_64__)
    // The compiler's test covers what the operating system saves across a switch, too.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512vnni")) variants[count++] = &kernels_avx512vnni;
#if defined(INNKEEPER_HAS_AVXVNNI)
    if (avx2 && has_avx_vnni()) variants[count++] = &kernels_avxvnni;
#endif
    if (avx512) variants[count++] = &kernels_avx512;
    if (avx2) variants[count++] = &kernels_avx2;
#elif defined(__aarch64__)
    if (has_dot_product()) variants[count++] = &kernels_dotprod;
#endif
    variants[count++] = &kernels_generic;
  }

#if defined(__x86_64__)
  // Two that not every compiler's __builtin_cpu_supports knows. AVX state itself is known to be saved when AVX2 is usable.
  static bool has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
  }
  static bool has_avx_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 4));
  }
#endif
};

const Usable& usable() {
  static const Usable found;
  return found;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels* const* usable_variants(int* count) {
  *count = usable().count;
  return usable().variants;
}

const Kernels& kernels() {
  const Kernels* now = chosen.load(std::memory_order_acquire);
  return now != nullptr ? *now : *usable().variants[0];
}

bool choose_variant(const char* name) {
  for (int i = 0; i < usable().count; i++) {
    if (std::strcmp(usable().variants[i]->name, name) == 0) {
      chosen.store(usable().variants[i], std::memory_order_release);
      return true;
    }
  }
  return false;
}

}  // namespace innkeeper
