"""Answers that must match a grammar, and thinking that must end in time: which tokens a row may draw next.

::

    prepare (any thread)    grammar ──GrammarCompiler──> CompiledGrammar ──┐        llguidance, over a GrammarVocabulary
                            reasoning marks ──ThinkingMarks────────────────┴──> ConstraintPlan
    a row joins             ConstraintPlan ──> RowConstraint, told what the row has answered already
    each step               forward pass dispatched; RowConstraint.push(last token); ConstraintStage: one fill, one mask

A plan is immutable and may be shared; a ``RowConstraint`` is one row's position and lives where the row decodes, and is made
anew from its tokens when it starts again. While a row thinks its grammar sleeps: it wakes behind the closing mark.

``productive`` knows schemas that no finite value matches, ``schema`` what a request's schema becomes, ``vocabulary`` the token
table, built once a model when it is first needed. Nothing but ``masks`` touches MLX.
"""
