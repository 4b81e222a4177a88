"""What happens between a configuration and an engine's first step.

`build` shows the order: `load` opens the device and reads the networks (`drafting` resolves the
settings, `drafters` builds the drafter), `memory` and `cache_size` divide the memory, `rehearsal`
compiles kernels ahead, `exactness` checks the bits of the loaded model (`exactness_probe` runs it),
`step_costs` measures steps, and `captures` captures the usual ones. `start_choices` says in words what
was chosen.

Does not know: requests.
"""
