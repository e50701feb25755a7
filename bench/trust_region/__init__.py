"""Which loss holds when tokens come from older weights: trainings of the quickstart's model that collapse, and that don't.

The trainer is the production one (losses, objective, advantages, optimizer, one rank); only rollout is replaced, by a sampler
that draws with the model's own weights of some steps ago and returns their log-probs, as an engine would. Every token of a
round is as old as `maxStaleness` allows; those of a real BoundedAsync job mostly aren't.

**A training has collapsed** if its reward, averaged over 5 consecutive steps, is more than 0.1 below the mean reward of the
untrained model, or a gradient is not finite. (The reward of a step is the mean score of the responses it trains, 0 to 1. 5 steps are
80 prompts, whose mean has a standard deviation of about 0.035 from one draw of prompts to another.) So a training that learns
slowly, or that loses a part of what it has learned, has not collapsed: one that is worse than before it began has.

The order of the measurement, fixed before it was made:

1. `search`: the loss as it was before this choice (truncated importance weights, cap 2, one minibatch) in SETTINGS, mildest first,
   on SEARCH_SEEDS, until it collapses in at least 6 of 12.
2. `select`: every candidate there, on the first half of these seeds. Chosen is the one that collapses least often; among equals the
   one whose trained models answer most held-out prompts correctly.
3. `confirm`: the chosen default there, on CONFIRMATION_SEEDS, which nothing before has used: at most 1 of 12 may collapse. The
   former loss runs beside it, since a setting in which it collapsed was looked for.
4. `compare`: at the quickstart's rate, with the default maxStaleness, the share of correct held-out answers less that of synchronous
   training on the same prompts, on CONFIRMATION_SEEDS: the lower end of its 95 % interval is to be above -5 points.

Changed after a first search over coarser steps of the rate, and before any seed of the confirmation was used: the rate 1.5 times the
quickstart's, since at twice the rate every loss collapsed in some of its first trainings; half of the seeds for the selection; the
candidate that combines clip and mask in place of a mask from 0.5 to 5, which had collapsed in three of three. The definition of a
collapse stayed as it was, although it misses one in the last steps: their models draw no responses that are trained. The answers
to held-out prompts show those.
"""
