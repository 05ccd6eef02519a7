//! Every preset through the WGSL backend: the checks of the suite that concern them all.

use longview_tests::backends;
use longview_tests::suite::policy;

macro_rules! on_wgpu {
    ($($check:ident),+ $(,)?) => {$(
        #[test]
        fn $check() {
            let Some(gpu) = backends::wgpu() else { return };
            policy::$check(&gpu);
        }
    )+};
}

on_wgpu! {
    every_preset_attends_what_it_says_within_its_budget,
    rows_on_the_device_are_attended_where_they_lie,
    rows_on_the_device_are_those_that_would_be_fetched,
    choices_among_rows_on_the_device_are_those_in_place,
    every_preset_may_follow_another_without_a_prefill,
    what_was_let_go_of_is_not_on_the_device,
    a_mass_budget_recalls_as_much_as_the_estimate_asks_for,
    certificates_are_never_violated,
    recalled_rows_are_attended_rounded,
    rows_of_8_bits_survive_cuts_and_other_policies,
    rows_of_8_bits_survive_a_lost_device,
}
