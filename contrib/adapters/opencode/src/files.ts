/** Files of a sandbox. Those of the workspace go by the service's interface for files, which is binary-safe, whole or
 * not at all, and never waits for a FIFO. What lies elsewhere in the sandbox, or behind a link that leads there, only
 * commands reach: small scripts, whose words are data and never text of a script. */

import { posix } from "node:path"
import { BerthError, type Client, type Json, filePlace, isObject, now } from "./client.js"
import { run, type Outcome } from "./commands.js"
import type { FileInfo } from "./contract.js"

export const ROOT = "/workspace"
const PATH_MAX = 4095
const SCRIPT_MS = 120_000
const PAGE = 1000
const LISTED_MAX = 100_000
const LISTING_BYTES_MAX = 16 << 20
/** What a script is given at a time: as base64 it fits into a request of 4 MiB. */
const CHUNK = 2 << 20
const MISSING = 66
const DIRECTORY = 67
const SPECIAL = 68
const READ = `[ -e "$1" ] || exit ${MISSING}
[ -d "$1" ] && exit ${DIRECTORY}
[ -f "$1" ] || exit ${SPECIAL}
stat -Lc %s -- "$1" && exec head -c "$2" -- "$1"
`
const WRITE = `[ -d "$1" ] && exit ${DIRECTORY}
[ -e "$1" ] && ! [ -f "$1" ] && exit ${SPECIAL}
mkdir -p -- "$2" && cat > "$1"
`
const APPEND = 'cat >> "$1"'
const REMOVE = `[ -e "$1" ] || [ -L "$1" ] || exit ${MISSING}
if [ "$2" = 1 ]; then rm -r -- "$1"; elif [ -d "$1" ] && ! [ -L "$1" ]; then rmdir -- "$1"; else rm -- "$1"; fi
`
const LIST = `[ -e "$1" ] || exit ${MISSING}
cd -- "$1" || exit 1
for e in * .[!.]* ..?*; do
  if [ -L "$e" ]; then t=l; elif [ -d "$e" ]; then t=d; elif [ -e "$e" ]; then t=f; else continue; fi
  printf '%s %s\\0' "$t" "$e"
done
`
/** Refusals after which a command may reach what the interface does not: a link that leads out of the workspace. */
const OUTSIDE = new Set(["EACCES", "ELOOP", "EXDEV"])

/** What the caller did wrong, or the sandbox has not. */
export class FileTrouble extends Error {
  constructor(
    message: string,
    readonly missing = false,
  ) {
    super(message)
  }
}

export class FileTooLarge extends FileTrouble {
  constructor(
    path: string,
    readonly size: number,
    readonly limit: number,
  ) {
    super(`${shown(path)} has ${size} bytes; at most ${limit} are read`)
  }
}

export function shown(path: string): string {
  return JSON.stringify(path.length <= 200 ? path : `${path.slice(0, 200)}…`)
}

function checkPath(path: string): void {
  if (path === "") throw new FileTrouble("the path is empty")
  if (path.includes("\0")) throw new FileTrouble("the path has a NUL in it")
  if (/\p{Surrogate}/u.test(path)) throw new FileTrouble("the path is no Unicode")
  const size = Buffer.byteLength(path)
  if (size > PATH_MAX) throw new FileTrouble(`the path has ${size} bytes; at most ${PATH_MAX} are possible`)
}

export class Files {
  constructor(
    private readonly client: Client,
    private readonly workspace: string,
    /** Where commands see the workspace, beside ROOT. */
    private readonly workdir: string,
    private readonly readMax: number,
  ) {}

  /** Relative to the workspace's root; undefined when it is not known to be in there. What `..` means depends on links,
   * so the sandbox decides. */
  inside(path: string): string | undefined {
    for (const top of [this.workdir, ROOT]) {
      if (path === top || path.startsWith(`${top}/`)) {
        path = path.slice(top.length).replace(/^\/+/, "")
        return path.split("/").includes("..") ? undefined : path
      }
    }
    return path.startsWith("/") || path.split("/").includes("..") ? undefined : path
  }

  private async attempt<T>(path: string, act: (place: string) => Promise<T>, otherwise: () => Promise<T>): Promise<T> {
    checkPath(path)
    const place = this.inside(path)
    if (place !== undefined) {
      try {
        return await act(place)
      } catch (error) {
        if (!(error instanceof BerthError) || !OUTSIDE.has(error.errno)) throw translated(error, path)
      }
    }
    return otherwise()
  }

  async read(path: string): Promise<Buffer> {
    return this.attempt(
      path,
      (place) => this.get(path, place),
      async () => {
        const { stdout } = await this.script(READ, [path, String(this.readMax + 1)], path, this.readMax + 64)
        const end = stdout.indexOf(10)
        const data = stdout.subarray(end + 1)
        if (data.length > this.readMax)
          throw new FileTooLarge(path, Math.max(Number(stdout.subarray(0, end).toString()), data.length), this.readMax)
        return data
      },
    )
  }

  private async get(path: string, place: string): Promise<Buffer> {
    const target = filePlace(this.workspace, "files", place)
    const range = { range: `bytes=0-${this.readMax}` }
    try {
      const answer = await this.client.ask("GET", target, { fields: range, repeat: true, bodyMax: this.readMax })
      const found = /^bytes (?:\*|\d+-\d+)\/(\d+)$/.exec(answer.fields["content-range"] ?? "")
      const size = Number(found ? found[1] : answer.fields["content-length"])
      if (size > this.readMax) throw new FileTooLarge(path, size, this.readMax)
      return answer.body
    } catch (error) {
      if (error instanceof BerthError && error.status === 416) return Buffer.alloc(0) // an empty file has no first byte
      throw error
    }
  }

  async write(path: string, content: Uint8Array): Promise<void> {
    if (path.endsWith("/")) throw new FileTrouble(`${shown(path)} names a directory`)
    await this.attempt(
      path,
      async (place) => {
        const query = { parents: "1" }
        await this.client.ask("PUT", filePlace(this.workspace, "files", place), { query, content, repeat: true })
      },
      async () => {
        for (let at = 0; at === 0 || at < content.length; at += CHUNK) {
          const words = at === 0 ? [path, posix.dirname(path)] : [path]
          await this.script(at === 0 ? WRITE : APPEND, words, path, 4096, content.subarray(at, at + CHUNK))
        }
      },
    )
  }

  async remove(path: string, recursive: boolean): Promise<void> {
    await this.attempt(
      path,
      async (place) => {
        if (place.split("/").every((name) => name === "" || name === "."))
          throw new FileTrouble("the workspace itself is removed with the sandbox")
        const query: Record<string, string> = recursive ? { recursive: "1" } : {}
        await this.client.ask("DELETE", filePlace(this.workspace, "files", place), { query, repeat: false })
      },
      async () => {
        await this.script(REMOVE, [path, recursive ? "1" : "0"], path, 4096)
      },
    )
  }

  async list(path: string): Promise<FileInfo[]> {
    return this.attempt(
      path,
      (place) => this.pages(path, place),
      async () => {
        const word = path.startsWith("/") ? path : `./${path}`
        const outcome = await this.script(LIST, [word], path, LISTING_BYTES_MAX)
        if (outcome.truncated.stdout) throw new FileTrouble(`${shown(path)} has too many entries to list`)
        const records = outcome.stdout.toString("utf8").split("\0")
        return records.filter((record) => record !== "").map((record) => entry(path, record[0] ?? "f", record.slice(2)))
      },
    )
  }

  private async pages(path: string, place: string): Promise<FileInfo[]> {
    const found: FileInfo[] = []
    let after: string | undefined
    do {
      const query = { limit: String(PAGE), ...(after === undefined ? {} : { after }) }
      const document = await this.client.document("GET", filePlace(this.workspace, "list", place), { query, repeat: true })
      for (const one of document["entries"] as Json[]) found.push(described(path, one))
      after = typeof document["next"] === "string" ? document["next"] : undefined
      if (after !== undefined && found.length >= LISTED_MAX)
        throw new FileTrouble(`${shown(path)} has more than ${LISTED_MAX} entries, too many to list`)
    } while (after !== undefined)
    return found
  }

  /** Links are not followed out of the workspace, but for commands. */
  async exists(path: string): Promise<boolean> {
    return this.attempt(
      path,
      async (place) => {
        await this.client.ask("GET", filePlace(this.workspace, "stat", place), { query: { follow: "1" }, repeat: true })
        return true
      },
      async () => {
        await this.script(`[ -e "$1" ] || exit ${MISSING}`, [path], path, 4096)
        return true
      },
    ).catch((error: unknown) => {
      if (error instanceof FileTrouble && error.missing) return false
      throw error
    })
  }

  private async script(text: string, words: string[], path: string, outputMax: number, stdin?: Uint8Array): Promise<Outcome> {
    const begun = now()
    const outcome = await run(this.client, this.workspace, {
      argv: ["/bin/sh", "-c", text, "berth", ...words],
      timeout: SCRIPT_MS,
      outputMax,
      stdin,
      mountPath: this.workdir,
    })
    if (outcome.kind === "exited" && outcome.exitStatus === 0) return outcome
    const name = shown(path)
    if (outcome.kind === "exited" && outcome.exitStatus === MISSING) throw new FileTrouble(`${name} is not there`, true)
    if (outcome.kind === "exited" && outcome.exitStatus === DIRECTORY) throw new FileTrouble(`${name} is a directory`)
    if (outcome.kind === "exited" && outcome.exitStatus === SPECIAL) throw new FileTrouble(`${name} is no regular file`)
    if (outcome.kind === "timed_out") throw new FileTrouble(`${name}: not within ${Math.round(now() - begun)} ms`)
    const said = outcome.stderr.subarray(-512).toString("utf8").trim()
    throw new FileTrouble(`${name}: ${said || String(outcome.verdict["text"] ?? outcome.kind)}`)
  }
}

/** A refusal that is about a file, as one; anything else as it is. */
function translated(error: unknown, path: string): unknown {
  if (!(error instanceof BerthError)) return error
  if (error.errno === "ENOENT" && !error.message.includes("no such workspace"))
    return new FileTrouble(`${shown(path)} is not there`, true)
  if (error.errno === "ENOTDIR") return new FileTrouble(`${shown(path)}: ${error.message}`, true)
  const aboutFiles = [400, 409, 413, 507].includes(error.status) && !["", "ESHUTDOWN"].includes(error.errno)
  return aboutFiles ? new FileTrouble(`${shown(path)}: ${error.message}`) : error
}

function entry(directory: string, kind: string, name: string): FileInfo {
  const type = kind === "d" ? "directory" : kind === "l" ? "symlink" : "file"
  return { path: posix.join(directory, name), type }
}

function described(directory: string, one: Json): FileInfo {
  const name =
    typeof one["name"] === "string" ? one["name"] : Buffer.from(String(one["name_base64"]), "base64").toString("utf8")
  const kind = one["type"] === "directory" ? "d" : one["type"] === "symlink" ? "l" : "f"
  if (!isObject(one)) throw new TypeError("an entry is no object")
  return {
    ...entry(directory, kind, name),
    size: Number(one["size"]),
    mode: String(one["mode"]),
    modifiedAt: String(one["modified_at"]),
  }
}
