"""Redis scripts: write some records, unless a newer run or attempt has begun to write; each runs as a whole.

Keys: the fence, then the key of each record. Arguments: the run, the sink partition, the micro-batch, the attempt, the
seconds until a value expires (0: never), and the records in MessagePack: which of them are deletions, the names of the
fields, and the values of each field. The answer is a word, and for each record that is refused its number and why.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NO_FENCE", "OTHER_RUN", "WRITE_HASHES", "WRITE_TEXTS", "WRITTEN"]

WRITTEN: Final = b"written"
"""The answer when the records are written, but for those that are refused."""
NO_FENCE: Final = b"no fence"
"""The answer when no run has begun, as far as the server knows."""
OTHER_RUN: Final = b"other run"
"""The answer when another run has begun."""

_BEGIN: Final = """
local fence = redis.call('HMGET', KEYS[1], 'run', ARGV[2])
if not fence[1] then return {'no fence'} end
if fence[1] ~= ARGV[1] then return {'other run'} end
local place = ARGV[3] .. ' ' .. ARGV[4]
if fence[2] ~= place then
  if fence[2] then
    local batch, attempt = string.match(fence[2], '(%d+) (%d+)')
    local ahead = tonumber(batch) - tonumber(ARGV[3])
    if ahead > 0 or (ahead == 0 and tonumber(attempt) > tonumber(ARGV[4])) then return {'older'} end
  end
  redis.call('HSET', KEYS[1], ARGV[2], place)
end
local ttl = tonumber(ARGV[5])
local records = cmsgpack.unpack(ARGV[6])
local gone, names, columns = records[1], records[2], records[3]
"""

# The stack of Lua holds 8000 values.
_HASH: Final = """
local function send(command, key, parts)
  local answer = 0
  for first = 1, #parts, 4000 do
    answer = redis.pcall(command, key, unpack(parts, first, math.min(first + 3999, #parts)))
    if type(answer) ~= 'number' then return answer end
  end
  return answer
end
local function write(key, row)
  local set, unset = {}, {}
  for place, name in ipairs(names) do
    local value = columns[place][row]
    if value == nil or (gone and gone[row]) then
      unset[#unset + 1] = name
    else
      set[#set + 1] = name
      set[#set + 1] = value
    end
  end
  local answer = send('HSET', key, set)
  if type(answer) == 'number' then answer = send('HDEL', key, unset) end
  if #set > 0 and ttl > 0 and type(answer) == 'number' then answer = redis.pcall('EXPIRE', key, ttl) end
  return answer
end
"""

# SET and DEL would replace a value of another type, which is not of this sink; STRLEN refuses it.
_TEXT: Final = """
local function write(key, row)
  local answer = redis.pcall('STRLEN', key)
  if type(answer) ~= 'number' then return answer end
  if gone and gone[row] then return redis.pcall('DEL', key) end
  if ttl > 0 then return redis.pcall('SET', key, columns[1][row], 'EX', ttl) end
  return redis.pcall('SET', key, columns[1][row])
end
"""

# Only what lies in a record may leave it out; with any other error the whole is written again.
_END: Final = """
local answers = {'written'}
for number = 2, #KEYS do
  local answer = write(KEYS[number], number - 1)
  if type(answer) == 'table' and answer.err then
    if not string.find(answer.err, 'WRONGTYPE', 1, true) then return answer end
    answers[#answers + 1] = number - 2
    answers[#answers + 1] = answer.err
  end
end
return answers
"""

WRITE_HASHES: Final = _BEGIN + _HASH + _END
"""Records as hashes, whose other fields stay."""
WRITE_TEXTS: Final = _BEGIN + _TEXT + _END
"""Records as strings."""
