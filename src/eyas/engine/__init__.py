"""The engine: how a step is scheduled, drafted, run, verified and committed, and the process around it.

`engine` shows a step and should be read first; `scheduler` plans it, `launch` drafts and runs it,
`masks` and `verifier` decide it, `commit` applies the results. `worker` is the process, `follower` that
of another rank. `startup` builds an engine, `disaggregation` moves prompts between engines.
"""
