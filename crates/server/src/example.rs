//! A line of a shell with which a server is tried.

use std::net::SocketAddr;

/// A `curl` line that a server at `address` answers. The embedded model knows few forms of
/// questions, and is asked in one of them. `key`: what stands for the API key, if one is needed.
pub fn curl_line(address: SocketAddr, is_embedded: bool, key: Option<&str>) -> String {
    let (path, body) = if is_embedded {
        let prompt = "The pass key is 48213. Remember it. 48213 is the pass key. What is the pass \
                      key? The pass key is";
        ("completions", format!(r#"{{"prompt": "{prompt}", "max_tokens": 12, "stop": "."}}"#))
    } else {
        let message = r#"{"role": "user", "content": "Hello"}"#;
        ("chat/completions", format!(r#"{{"messages": [{message}]}}"#))
    };
    let key = key.map(|key| format!(" -H 'Authorization: Bearer {}'", quoted(key)));
    format!("curl http://{address}/v1/{path}{} -d '{body}'", key.unwrap_or_default())
}

/// A text between single quotes of a shell.
fn quoted(text: &str) -> String {
    text.replace('\'', r"'\''")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_in_the_line_as_the_shell_reads_it() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        let line = curl_line(address, false, Some("it's"));
        assert!(line.contains(r"-H 'Authorization: Bearer it'\''s' -d '{"), "{line}");
        assert!(!curl_line(address, true, None).contains("Authorization"));
    }
}
