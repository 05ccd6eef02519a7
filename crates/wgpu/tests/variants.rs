//! The list of variants has what the ops launch: the corpus is launched, every other case at even
//! offsets, on a device that compiles nothing, and what it noted is looked up.

use longview_ops::Backend;
use longview_ops::corpus::corpus;
use longview_wgpu::{ShaderVariant, variants};

use crate::common;

#[test]
fn what_the_corpus_launches_is_listed() {
    let Some(backend) = common::listing() else { return };
    let cases = corpus();
    let wanted = cases.iter().filter(|case| case.runs_on(backend.capabilities()));
    for (i, case) in wanted.enumerate() {
        let mut plan = case.plan();
        if i % 2 == 0 {
            plan.inputs.iter_mut().for_each(|input| input.front = 0);
            plan.outputs.iter_mut().for_each(|output| output.front = 0);
        }
        let mut buffers = plan.upload(&backend).expect("memory");
        case.launch(&backend, &mut buffers).unwrap_or_else(|e| panic!("{}: {e}", case.name()));
    }
    backend.submit().expect("a device that is there");
    let listed = variants();
    let launched = backend.take_listed();
    assert!(launched.len() >= 500, "{} variants", launched.len());
    for found in launched {
        let names = |v: &ShaderVariant| v.defines.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let same = |v: &&ShaderVariant| {
            (v.stem, v.entry) == (found.stem, found.entry) && names(v) == names(&found)
        };
        let same: Vec<_> = listed.iter().filter(same).collect();
        assert!(!same.is_empty(), "not listed: {found:?}");
        // The corpus has widths that no model has.
        for define in found.defines.iter().filter(|(name, _)| *name != "HEAD_DIM") {
            let has = same.iter().any(|v| v.defines.contains(define));
            assert!(has, "{define:?} of {found:?} is not listed");
        }
    }
}
