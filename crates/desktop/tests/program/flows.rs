//! What a person does, against the script.

use crate::support::Setup;
use crate::support::script::Script;
use longview_desktop::strings;

#[test]
fn the_first_start_shows_a_sample_that_can_be_read_and_asked() {
    let (script, open) = Script::new();
    let mut window = Setup::new(open).window();
    window.wait_for(strings::READ);
    assert!(window.sees(strings::EMBEDDED_NOTE));
    window.click(strings::READ);
    script.go(100);
    window.wait_for_part("read in");
}
