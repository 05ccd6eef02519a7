//! From what was asked for to the policy in force: the one place that knows model and context.

use longview_scheduler::{Policy, PolicyError, PolicyOptions};

/// The policy that `options` ask for in a model of `n_layers` layers and a context of `context`
/// tokens, and the options with what depends on the model's depth filled in.
///
/// # Errors
/// Options that cannot work together, by name.
pub fn resolve_policy(
    options: &PolicyOptions,
    n_layers: usize,
    context: usize,
) -> Result<(PolicyOptions, Policy), PolicyError> {
    let options = options.clone().for_depth(n_layers);
    let policy = Policy::resolve(&options, context)?;
    Ok((options, policy))
}
