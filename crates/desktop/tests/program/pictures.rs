//! Every state as a picture.

use crate::support::Setup;
use crate::support::script::Script;
use longview_desktop::strings;

#[test]
fn planned() {
    let (_script, open) = Script::new();
    let mut window = Setup::new(open).window();
    window.wait_for(strings::READ);
    window.picture("planned");
}
