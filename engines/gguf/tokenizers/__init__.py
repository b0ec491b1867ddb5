"""The parts of a tokenizer that is built from GGUF metadata alone.

::

    metadata ──> kinds, pre   which kinds there are, and why one cannot be used
                 vocabulary   texts, types, special ids, BOS and EOS rules, the set of ids that end an answer
                     │
    text ──> specials         cuts special tokens out of the text; what is between them goes to one of
                     │
               bpe (with pre)   byte-pair encoding by merges, by the `tokenizers` library; rebuilt: merges that a file lacks;
                     │          dna: the same with stretches of DNA
               spm              SentencePiece's merges by score, with bytes for what has no piece; cuts, lexicon, merging: its
                                parts that may be merged one by one, all tokens in a text, and the merges of one
               wordpiece, unigram   BERT's and T5's, by the library; for encoders too
               rwkv, plamo2     the longest token at each place, the cheapest way through a text; prefixes: what may begin
                                there; index: from one text to its id

    ids  ──> detokenizer      bytes of tokens to text, whole code points only

:mod:`engines.gguf.tokenizer` puts them together; the rest of the program uses that module alone.
"""
