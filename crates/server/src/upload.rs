//! A document as a form with a file, as browsers and `curl -F` send it.

use axum::body::Bytes;
use longview_library::documents::Source;
use longview_library::text::extract;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, clip};

/// Parts of a form.
const MAX_PARTS: usize = 16;

/// Letters of a file's name. Of a longer one its end stays, which says what kind of file it is.
const MAX_NAME: usize = 255;

/// A file that came in.
pub(crate) struct Upload {
    /// As its user named it.
    name: String,
    bytes: Bytes,
}

/// The boundary of a form, if the header says that the body is one.
pub(crate) fn boundary(content_type: Option<&str>) -> Option<String> {
    multer::parse_boundary(content_type?).ok()
}

/// The fields of a form as those of a JSON object, and its file.
pub(crate) async fn read(
    boundary: String,
    body: Bytes,
) -> Result<(Value, Option<Upload>), ApiError> {
    let broken = |error: multer::Error| ApiError::bad("invalid_form", error.to_string());
    let whole = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(body)]);
    let mut form = multer::Multipart::new(whole, boundary);
    let (mut fields, mut file) = (Map::new(), None);
    let mut n_parts = 0;
    while let Some(part) = form.next_field().await.map_err(broken)? {
        n_parts += 1;
        if n_parts > MAX_PARTS {
            let message = format!("the form has more than {MAX_PARTS} parts");
            return Err(ApiError::bad("invalid_form", message));
        }
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            let file_name = part.file_name().unwrap_or("file").to_owned();
            let bytes = part.bytes().await.map_err(broken)?;
            file = Some(Upload { name: file_name, bytes });
        } else {
            let text = part.text().await.map_err(broken)?;
            fields.insert(name, value(text));
        }
    }
    Ok((Value::Object(fields), file))
}

/// What a field of a form means: forms know texts alone.
fn value(text: String) -> Value {
    match text.as_str() {
        "true" => json!(true),
        "false" => json!(false),
        digits if digits.len() < 16 && digits.parse::<u64>().is_ok() => {
            json!(digits.parse::<u64>().unwrap_or_default())
        }
        _ => Value::String(text),
    }
}

impl Upload {
    /// Its text, read in a process of its own with limits: files are programs of strangers.
    pub(crate) fn text(&self, max_bytes: u64) -> Result<(String, Source), ApiError> {
        let base = self.name.rsplit(['/', '\\']).next().unwrap_or_default();
        let before = base.chars().count().saturating_sub(MAX_NAME);
        let letters = base.chars().skip(before);
        let name: String = letters.map(|c| if c.is_control() { '?' } else { c }).collect();
        let found = extract(&self.bytes[..], &name, max_bytes);
        let refused = |error| {
            let message = format!("file: {}: {error}", clip(&name));
            ApiError::bad("unreadable_file", message).about("file")
        };
        let found = found.map_err(refused)?;
        let kind = found.kind.name().to_owned();
        Ok((
            found.text,
            Source { name, kind, bytes: self.bytes.len() as u64, pages: found.n_pages },
        ))
    }
}
