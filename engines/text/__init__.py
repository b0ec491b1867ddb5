"""The text engine: chat and completion over a GGUF checkpoint.

::

    TextRequest ──prepare──> chat_prompt (templates, template_traits, template_sandbox), tokenizer,      any thread
                             constraints (grammars, thinking) ──> PreparedText
        PreparedText ──submit──> engine ──> batcher: queue → one-row prefill → joins the rows that decode
        batcher ──RowToken──> sequence: detokeniser, output (content, thinking, calls), stops            device thread
                              ──> TextDelta, ReasoningDelta, ToolCallStarted … Finished

``loader`` builds it; ``preparation`` checks requests; ``engine`` is the glue and turns rows into events; ``batcher`` drives
mlx-lm's batches and asks ``engines.scheduling`` who may start and whose turn it is. A step is a forward pass and the stages
in ``draws``: ``adjustments`` (biases and penalties), ``constraints`` (grammars), ``sampling``, which draws every row's next
token in one vectorised call, and ``logprobs``. ``prefill`` reads a prompt, and scores its tokens where they are echoed
(``echo``) with log-probabilities; ``shared_prompt`` keeps what was read for the siblings of a row.
Nothing here patches mlx-lm. Import from the modules: ``stops`` is used without MLX too.
"""
