// The instructions that CUDA C++ has no name for, one function each. Addresses in shared memory are 32 bits wide.

KQ_FN void kq_mma(float (&c)[4], kq_u32 a0, kq_u32 a1, kq_u32 a2, kq_u32 a3, kq_u32 b0, kq_u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

KQ_FN kq_u32 kq_shared_address(const void* p) { return (kq_u32)__cvta_generic_to_shared(p); }

// Barriers in shared memory that the bulk copy engine completes.
KQ_FN void kq_barrier_init(kq_u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
KQ_FN void kq_barriers_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
KQ_FN void kq_barrier_expect(kq_u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
KQ_FN void kq_barrier_wait(kq_u32 barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}"
      ::"r"(barrier), "r"(parity) : "memory");
}
KQ_FN void kq_bulk_copy(kq_u32 to, KQ_BYTES from, int bytes, kq_u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
