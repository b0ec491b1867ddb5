// Logits of llama.cpp for a prompt and the tokens after it: logits MODEL OUT PROMPT_LENGTH TOKEN...
//
// Reads the first PROMPT_LENGTH tokens at once and the others one by one, on the CPU with KV in float32, and writes float32
// [tokens, vocabulary].
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char ** argv) {
    if (argc < 5) {
        return 1;
    }
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr) {
        return 2;
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context * context = llama_init_from_model(model, params);
    FILE * out = fopen(argv[2], "wb");
    if (context == nullptr || out == nullptr) {
        return 3;
    }
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int prompt = atoi(argv[3]);
    const int count = argc - 4;
    for (int start = 0; start < count;) {
        const int tokens = start < prompt ? prompt - start : 1;
        llama_batch batch = llama_batch_init(tokens, 0, 1);
        for (int i = 0; i < tokens; i++) {
            batch.token[i] = atoi(argv[4 + start + i]);
            batch.pos[i] = start + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        batch.n_tokens = tokens;
        if (llama_decode(context, batch) != 0) {
            return 4;
        }
        for (int i = 0; i < tokens; i++) {
            fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, out);
        }
        llama_batch_free(batch);
        start += tokens;
    }
    fclose(out);
    return 0;
}
