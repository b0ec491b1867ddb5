// CUDA C++ as far as the kernels use it, on one thread of a CPU: the threads of a block are fibers that take turns at barriers.
// What instructions.cuh does in PTX is done here in its place. Shared memory is poisoned before each block.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 { int x, y, z; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct float2 { float x, y; };
inline int min(int a, int b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }

inline float as_float(unsigned bits) { float v; std::memcpy(&v, &bits, 4); return v; }
inline unsigned as_bits(float v) { unsigned bits; std::memcpy(&bits, &v, 4); return bits; }

struct __half { _Float16 v; operator float() const { return v; } };
struct __half2 { __half x, y; };
struct __nv_bfloat16 { unsigned short bits; operator float() const { return as_float((unsigned)bits << 16); } };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };

inline __half __ushort_as_half(unsigned short bits) { __half h; std::memcpy(&h, &bits, 2); return h; }
inline float __half2float(__half h) { return h; }
inline __half __float2half(float v) { return {(_Float16)v}; }
inline __half2 __half2half2(__half h) { return {h, h}; }
inline __half2 __low2half2(__half2 p) { return {p.x, p.x}; }
inline __half2 __high2half2(__half2 p) { return {p.y, p.y}; }
inline __half2 __float2half2_rn(float v) { return __half2half2(__float2half(v)); }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half(a), __float2half(b)}; }
inline float2 __half22float2(__half2 p) { return {p.x, p.y}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return __floats2half2_rn((float)a.x + b.x, (float)a.y + b.y); }
inline __half2 __hmul2(__half2 a, __half2 b) { return __floats2half2_rn((float)a.x * b.x, (float)a.y * b.y); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __floats2half2_rn((float)((double)(float)a.x * b.x + c.x), (float)((double)(float)a.y * b.y + c.y));
}
inline __half2 __hneg2(__half2 a) { return {{-a.x.v}, {-a.y.v}}; }
inline __nv_bfloat16 __float2bfloat16(float v) {
  unsigned bits = as_bits(v);
  return {(unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16(a), __float2bfloat16(b)}; }
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline float __uint_as_float(unsigned bits) { return as_float(bits); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)((((uint64_t)high << 32) | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
}

// ---- Threads

struct Meeting { int arrived = 0, generation = 0; };
struct Fiber { ucontext_t context; std::unique_ptr<char[]> stack; dim3 index; bool done; };
struct Barrier { int arrivals, pending, bytes, phase; };  // of the bulk copy engine
struct Machine {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  int current;
  std::function<void()> body;
  Meeting block, warps[32];
  unsigned a[32][32][4], b[32][32][2];  // a warp's operands, lane by lane
};
inline Machine machine;
inline dim3 blockIdx, blockDim;
#define threadIdx (machine.fibers[machine.current].index)

inline void yield() { swapcontext(&machine.fibers[machine.current].context, &machine.scheduler); }
inline void meet(Meeting& meeting, int threads) {
  const int generation = meeting.generation;
  if (++meeting.arrived == threads) meeting.arrived = 0, meeting.generation++;
  else while (meeting.generation == generation) yield();
}
inline void __syncthreads() { meet(machine.block, (int)machine.fibers.size()); }
inline void __syncwarp() { meet(machine.warps[threadIdx.x >> 5], 32); }

inline float __shfl_xor_sync(unsigned, float value, int distance) {
  const int lane = threadIdx.x & 31;
  auto& operands = machine.a[threadIdx.x >> 5];
  operands[lane][0] = as_bits(value);
  __syncwarp();
  const float other = as_float(operands[lane ^ distance][0]);
  __syncwarp();
  return other;
}
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }

inline void enter() { machine.body(); machine.fibers[machine.current].done = true; yield(); }
// ---- In place of instructions.cuh

typedef unsigned int kq_u32;
constexpr int SHARED = 227 * 1024;
alignas(128) inline unsigned char kq_shared[SHARED];
inline Barrier barriers[SHARED / 8];  // 8 bytes of shared memory are too few for one
inline kq_u32 kq_shared_address(const void* p) { return (kq_u32)((const unsigned char*)p - kq_shared); }
inline void add_dot(unsigned x, unsigned y, double& sum) {
  __half2 a, b;
  std::memcpy(&a, &x, 4), std::memcpy(&b, &y, 4);
  sum += (double)(float)a.x * (float)b.x + (double)(float)a.y * (float)b.y;
}
inline void kq_mma(float (&c)[4], kq_u32 a0, kq_u32 a1, kq_u32 a2, kq_u32 a3, kq_u32 b0, kq_u32 b1) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  auto& a = machine.a[warp];
  auto& b = machine.b[warp];
  a[lane][0] = a0, a[lane][1] = a1, a[lane][2] = a2, a[lane][3] = a3, b[lane][0] = b0, b[lane][1] = b1;
  __syncwarp();
  for (int e = 0; e < 4; e++) {
    double sum = c[e];
    for (int q = 0; q < 4; q++) {
      const auto& row = a[g * 4 + q];
      const auto& column = b[(2 * t + (e & 1)) * 4 + q];
      add_dot(row[e >> 1], column[0], sum), add_dot(row[2 + (e >> 1)], column[1], sum);
    }
    c[e] = (float)sum;
  }
  __syncwarp();
}
inline Barrier& barrier_at(kq_u32 at) { return barriers[at / 8]; }
inline void kq_barrier_init(kq_u32 at, int arrivals) { barrier_at(at) = {arrivals, arrivals, 0, 0}; }
inline void kq_barriers_ready() {}
inline void turn(Barrier& b) { if (b.pending == 0 && b.bytes == 0) b.pending = b.arrivals, b.phase ^= 1; }
inline void kq_barrier_expect(kq_u32 at, int bytes) { Barrier& b = barrier_at(at); b.pending--, b.bytes += bytes; }
inline void kq_bulk_copy(kq_u32 to, const unsigned char* from, int bytes, kq_u32 at) {
  if (to & 15 || (size_t)from & 15 || bytes & 15 || bytes <= 0) abort();
  std::memcpy(kq_shared + to, from, bytes);
  barrier_at(at).bytes -= bytes;
  turn(barrier_at(at));
}
inline void kq_barrier_wait(kq_u32 at, int parity) { while (barrier_at(at).phase == parity) yield(); }

// ---- Running

inline void run_block(int threads, std::function<void()> body) {
  machine.body = body;
  blockDim = {threads, 1, 1};
  std::memset(kq_shared, 0xFF, sizeof kq_shared);
  machine.fibers.clear();
  machine.fibers.resize(threads);
  for (int i = 0; i < threads; i++) {
    Fiber& fiber = machine.fibers[i];
    fiber.index = {i, 0, 0}, fiber.done = false, fiber.stack.reset(new char[1 << 16]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = 1 << 16;
    makecontext(&fiber.context, enter, 0);
  }
  for (int left = threads, rounds = 0; left > 0; rounds++) {
    if (rounds > 100000) abort();
    for (int step = 0; step < threads; step++) {
      const int i = rounds % 2 ? threads - 1 - step : step;
      machine.current = i;
      if (machine.fibers[i].done) continue;
      swapcontext(&machine.scheduler, &machine.fibers[i].context);
      if (machine.fibers[i].done) left--;
    }
  }
}
template <class Body>
void run_grid(int x, int y, int threads, Body body) {
  for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++) {
    for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) run_block(threads, body);
  }
}
