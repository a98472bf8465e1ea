// Columns of the payload: base64 of gzipped little-endian arrays, unpacked when somebody asks.

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array, f64: Float64Array };

/** Bytes of a base64 text. */
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text),
    bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** The typed array of one column. */
async function unpack(column) {
  const stream = new Blob([fromBase64(column.data)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const values = new ARRAYS[column.type](buffer);
  if (values.length !== column.length) throw new Error(`a column holds ${values.length} values, not ${column.length}`);
  return values;
}

/** Every column of a table, by name. */
async function unpackAll(table) {
  const entries = Object.entries(table).map(async ([name, column]) => [name, await unpack(column)]);
  return Object.fromEntries(await Promise.all(entries));
}
